"""FedETF on the digits: the tables of docs/fedetf.md, printed as they stand there.

    python benchmarks/fedetf_digits.py [absent] [measured]

`absent`: FedAvg, and FedETF with absent classes masked or counted once, along 30 rounds, the mean over the seeds 100 to
104. `measured`: general and personal accuracy and neural collapse after 10 rounds, mean ± standard deviation over the
seeds 0 to 4, and the accuracy along FedETF's fine-tuning. Without a name, both, which takes half an hour. Clients train
in a plain loop, so that the numbers do not depend on which executor is the fastest here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun, RoundFunction, Snapshot
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.papers.analyses.collapse import round_metrics
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import load
from fedhead.stages.finetune import FineTuneETF

MASK = "FedETF, `mask`"
METHODS: Mapping[str, Sequence[str]] = {
    "FedAvg": ["method=fedavg"],
    MASK: ["method=fedetf", "method.absent=mask"],
    "FedETF, `one`": ["method=fedetf", "method.absent=one"],
}
LOOP = Compute(executor="loop")
ALPHAS, ROUNDS = (0.05, 0.1), (3, 10, 20, 30)  # of `absent`
MODELS = ("digitscnn", "mlp")  # of `measured`
STEPS = {"global": "global", "extractor": "extractor"} | {
    f"{part} {turn}": f"{letter} {turn}"
    for turn in (1, 2, 3, 5)
    for part, letter in (("classifier", "V"), ("projection", "p"))
}


def line(*cells: str) -> None:
    """Print a line of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def rule(columns: int) -> None:
    """Print the line below a table's head."""
    print("|" + "---|" * columns, flush=True)


# -- absent classes ---------------------------------------------------------------------------------------------------
def absent() -> None:
    """Print the accuracy along the rounds by what becomes of the classes that a client lacks."""
    line("", *(f"({alpha}): {r}" if r == ROUNDS[0] else str(r) for alpha in ALPHAS for r in ROUNDS))
    rule(1 + len(ALPHAS) * len(ROUNDS))
    for name, words in METHODS.items():
        means: list[float] = []
        for alpha in ALPHAS:
            found = [along_rounds([*words, f"partition=dirichlet({alpha})", f"seed={s}"]) for s in range(100, 105)]
            means += [mean(column) for column in zip(*found, strict=True)]
        line(name, *(f"{value:.1f}" for value in means))


def along_rounds(words: Iterable[str]) -> list[float]:
    """Return the accuracy of a run of recipe `digits` after each number of `ROUNDS`."""
    experiment, federation = prepare(load("digits", [*words, f"rounds={ROUNDS[-1]}"]))
    rows = {row["round"]: row for row in rounds.run(Simulation(experiment, federation, LOOP)).rows}
    return [rows[number]["accuracy"] for number in ROUNDS]


# -- general and personal accuracy, and collapse ----------------------------------------------------------------------
def measured() -> None:
    """Print the table of accuracies and collapse, and that of FedETF's fine-tuning step by step."""
    steps: dict[str, list[Mapping[str, float]]] = {"paper": [], "code": []}
    head = ("General.", "untuned Personal.", "`finetune`", "`finetune_etf`", "NC2 error", "prototype consistency")
    line("model", "method", *head)
    rule(2 + len(head))
    for model in MODELS:
        for name, words in METHODS.items():
            rows = []
            for seed in range(5):
                result, row = trained(model, words, seed)
                rows.append(row)
                if (model, name) == ("digitscnn", MASK):
                    for variant in ("paper", "code"):
                        tuned = run_stage(result.transport, FineTuneETF(iterations=5, variant=variant))
                        steps[variant].append(tuned.metrics["steps"])
            line(model, name, *(spread([row.get(column) for row in rows], column) for column in head))
    print()
    line("variant", *STEPS.values())
    rule(1 + len(STEPS))
    for variant, found in steps.items():
        line(variant, *(f"{mean(one[step] for one in found):.1f}" for step in STEPS))


def trained(model: str, words: Iterable[str], seed: int) -> tuple[FinishedRun, dict[str, float | None]]:
    """Return a finished run, and its row of the table."""
    settings = ["partition=dirichlet(0.05)", "client_test=0.3", "local_epochs=3", "weight_decay=5e-4", "last_rounds=5"]
    stages = ["finetune"]
    if "method=fedetf" in words:
        stages.append("finetune_etf")
        settings.append("stage.finetune_etf.iterations=3")
    recipe = load("digits", [*settings, *words, f"model={model}", f"seed={seed}", f"stages=[{', '.join(stages)}]"])
    experiment, federation = prepare(recipe)
    simulation = Simulation(experiment, federation, LOOP)
    last: dict[str, float] = {}

    def after_the_last(now: Snapshot) -> None:
        if now.round == recipe.rounds:
            last.update(round_metrics(simulation, Loop(), now.round))

    result = rounds.run(simulation, [RoundFunction(after_the_last)])
    tuned = {f"`{name}`": stage.personal for name, stage in result.stages.items()}
    numbers = {"NC2 error": last["nc2"], "prototype consistency": last["prototype_consistency"]}
    return result, {"General.": result.accuracy_mean, "untuned Personal.": result.personal} | tuned | numbers


def spread(values: Sequence[float | None], column: str) -> str:
    """Return mean ± standard deviation; a dash where the method has no such number."""
    found = [value for value in values if value is not None]
    digits = 2 if column in ("NC2 error", "prototype consistency") else 1
    return f"{mean(found):.{digits}f} ± {stdev(found):.{digits}f}" if found else "–"


TABLES = {"absent": absent, "measured": measured}


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help=f"among {', '.join(TABLES)}; both unless one is named")
    names = parser.parse_args().tables or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"unknown table {unknown[0]!r}: select from {', '.join(TABLES)}")
    for name in names:
        TABLES[name]()
        print()


if __name__ == "__main__":
    main()
