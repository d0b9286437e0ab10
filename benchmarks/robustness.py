"""Ten clients, two of them hostile: the accuracy under each attack, with the plain mean and with each rule.

    python benchmarks/robustness.py --partition 'dirichlet(1.0)' --seeds 3

prints one line per rule, the mean over the seeds; docs/robustness.md holds what it printed.
"""

from __future__ import annotations

import argparse
import logging
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

HOSTILE = (0, 1)
ATTACKS: Mapping[str, hostile.Attack] = {
    "none": hostile.honest,
    "×−10": hostile.scaled(-10),
    "×1e6": hostile.scaled(1e6),
    "sign flip": hostile.flipped,
    "random": hostile.randomized,
    "n=1e12, ×−1": hostile.boasting,
    "label flip": hostile.honest,  # what is changed is the data
    "CCVR, none": hostile.honest,
    "CCVR ×1e6": hostile.inflated,
}
RULES: Mapping[str, list[str]] = {
    "mean": [],
    "median": ["aggregator=median"],
    "trimmed_mean(2)": ["aggregator=trimmed_mean(2)"],
    "krum(2)": ["aggregator=krum(2)"],
    "multi_krum(2)": ["aggregator=multi_krum(2)"],
    "geometric_median": ["aggregator=geometric_median"],
    "centered_clipping": ["aggregator=centered_clipping"],
    "drop(norm=2, samples=5)": ["outliers=drop(norm=2, samples=5)"],
    "clip(norm=2, samples=5)": ["outliers=clip(norm=2, samples=5)"],
}


def accuracy(rule: str, attack: str, partition: str, seed: int) -> float | None:
    """Return the global model's accuracy after the last round, or after CCVR; None where the run did not end."""
    stages = ["stages=[ccvr]"] if attack.startswith("CCVR") else []
    settings = [f"partition={partition}", f"seed={seed}", "local_epochs=2"]
    recipe = load("digits", [*settings, *RULES[rule], *stages])
    experiment, federation = prepare(replace(recipe, evaluate_every=recipe.rounds))
    if attack == "label flip":
        federation = hostile.flip_labels(federation, HOSTILE)
    compute = Compute(device="cpu", executor="stack")
    simulation = hostile.HostileSimulation(experiment, federation, compute, hostile=HOSTILE, attack=ATTACKS[attack])
    try:
        result = rounds.run(simulation)
    except FedheadError as error:
        print(f"# {rule}, {attack}, seed {seed}: {error}", flush=True)
        return None
    return result.stages["ccvr"].accuracy if stages else result.accuracy


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="dirichlet(1.0)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    options = parser.parse_args()
    logging.getLogger("fedhead").setLevel(logging.ERROR)  # clients that are dropped, in every round
    print("| " + " | ".join(["rule", *options.attacks]) + " |")
    print("|---" + "|---:" * len(options.attacks) + "|")
    for rule in options.rules:
        cells = []
        for attack in options.attacks:
            found = [accuracy(rule, attack, options.partition, seed) for seed in range(options.seeds)]
            finished = [value for value in found if value is not None]
            cells.append(f"{mean(finished):.1f}" if len(finished) == len(found) else "—")
        print("| " + " | ".join([f"`{rule}`", *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
