"""Ten clients, some of them hostile: the accuracy under each attack, with the plain mean and with each rule.

    python benchmarks/robustness.py
    python benchmarks/robustness.py --hostile 2 --seeds 3 --attacks none ×−10 ×1e6 sign random samples labels

print one line per rule, the mean over the seeds, and per cell one number for each number of hostile clients;
docs/robustness.md holds the output.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

from fedhead.core.system.errors import FedheadError
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import hostile

CLIENTS = 10
NORM = 2.0  # limit of the rules on the length of an update
ATTACKS: Mapping[str, hostile.Attack] = {
    "none": hostile.honest,
    "×−10": hostile.scaled(-10),
    "×1e6": hostile.scaled(1e6),
    "sign": hostile.flipped,
    "random": hostile.randomized,
    "samples": hostile.boasting,
    "labels": hostile.honest,  # the data are poisoned, not the reply
    "CCVR, none": hostile.honest,
    "CCVR ×1e6": hostile.inflated,
    "IPM 0.5": hostile.inner_product(0.5),
    "IPM 2": hostile.inner_product(2.0),
    "ALIE": hostile.honest,  # its z depends on the number of hostile clients
    "long flip": hostile.flipped_to(0.95 * NORM),
    "backdoor": hostile.honest,  # the data are poisoned, not the reply
}
STEALTHY = ["IPM 0.5", "IPM 2", "ALIE", "long flip", "backdoor"]
PLAIN = ["median", "trimmed_mean(f)", "krum(f)", "multi_krum(f)", "geometric_median", "centered_clipping"]
MIXED = [f"{rule[:-1]}, mixing=f)" if rule.endswith(")") else f"{rule}(mixing=f)" for rule in PLAIN]
RULES: Mapping[str, list[str]] = {
    "mean": [],
    **{rule: [f"aggregator={rule}"] for rule in [*PLAIN, *MIXED]},
    "drop(norm=2, samples=5)": [f"outliers=drop(norm={NORM}, samples=5)"],
    "clip(norm=2, samples=5)": [f"outliers=clip(norm={NORM}, samples=5)"],
}


def measure(rule: str, attack: str, count: int, partition: str, seed: int) -> list[float]:
    """Return the global model's accuracy after the last round, or after CCVR, and the backdoor's success.

    Args:
        rule: Entry of `RULES`.
        attack: Entry of `ATTACKS`.
        count: Number of hostile clients, the first ones; also f of the rule.
        partition: Partition of the recipe.
        seed: Seed of the run.

    Returns:
        One or two numbers; none if the run diverged.
    """
    stages = ["stages=[ccvr]"] if attack.startswith("CCVR") else []
    settings = [f"partition={partition}", f"clients={CLIENTS}", f"seed={seed}", "local_epochs=2"]
    recipe = load("digits", [*settings, *(re.sub(r"\bf\b", str(count), text) for text in RULES[rule]), *stages])
    experiment, federation = prepare(replace(recipe, evaluate_every=recipe.rounds))
    clients = range(count)
    if attack == "labels":
        federation = hostile.flip_labels(federation, clients)
    if attack == "backdoor":
        federation = hostile.backdoor(federation, clients)
    change = hostile.little(hostile.z_max(CLIENTS, count)) if attack == "ALIE" else ATTACKS[attack]
    compute = Compute(device="cpu", executor="stack")
    simulation = hostile.HostileSimulation(experiment, federation, compute, hostile=clients, attack=change)
    try:
        result = rounds.run(simulation)
    except FedheadError as error:
        print(f"# {rule}, {attack}, {count} hostile, seed {seed}: {error}", file=sys.stderr)
        return []
    accuracy = result.stages["ccvr"].accuracy if stages else result.accuracy
    assert accuracy is not None
    return [accuracy, hostile.backdoor_success(simulation)] if attack == "backdoor" else [accuracy]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="dirichlet(1.0)")
    parser.add_argument("--hostile", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--attacks", nargs="*", default=STEALTHY)
    options = parser.parse_args()
    logging.getLogger("fedhead").setLevel(logging.ERROR)  # clients that are dropped, in every round
    names = [name for attack in options.attacks for name in ([attack, "success"] if attack == "backdoor" else [attack])]
    print("| " + " | ".join(["rule", *names]) + " |")
    print("|---" + "|---:" * len(names) + "|")
    for rule in options.rules:
        cells: list[str] = []
        for attack in options.attacks:
            columns: list[list[str]] = [[], []] if attack == "backdoor" else [[]]
            for count in options.hostile:
                runs = [measure(rule, attack, count, options.partition, seed) for seed in range(options.seeds)]
                for place, column in enumerate(columns):
                    column.append(f"{mean(run[place] for run in runs):.1f}" if all(runs) else "—")
            cells += [" / ".join(column) for column in columns]
        print("| " + " | ".join([f"`{rule}`", *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
