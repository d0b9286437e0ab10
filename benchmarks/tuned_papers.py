"""Tune a baseline of a paper at the paper's own scale: the recipe is a cell of one of its tables.

    python benchmarks/tuned_papers.py ccvr/table2 'cifar10-0.1 fedprox before' rounds=20 --device cuda --precision bf16

searches over the learning rate and the method's main hyperparameter (`RANGES` of tuned.py), all trials side by side, on
15 % validation samples as in CCVR's experiments, and writes the trials and the best recipe to
results/tuning/TABLE/CELL/. With --final the best setting is then trained on all training samples and tested on the
test set. The same command goes on with a search that was stopped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tuned import RANGES, ROOT

import fedhead as fh
from fedhead.engine.experiment.compute import Compute
from fedhead.papers.tables import paper_tables as tables
from fedhead.recipes.recipe import assignment
from fedhead.studies.tune.trials import TrialRecord

OBJECTIVES = {"accuracy": "accuracy", "personalization": "personal"}  # by what a table measures


def main() -> None:
    """Search, and write what is committed of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a paper's table, such as ccvr/table2")
    parser.add_argument("cell", help="words of a cell's name, such as 'cifar10-0.1 fedprox before'")
    parser.add_argument("assignments", nargs="*", help="key=value, what differs from the table")
    parser.add_argument("--lr", default="log(1e-3, 1e-1)", help="the range of the learning rate")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--minutes", type=float, help="begin no trial after so many minutes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"), help="where the study lies")
    parser.add_argument("--final", action="store_true", help="train the best setting on all training samples")
    asked = parser.parse_args()
    cell = tables.load(asked.table).cells("full", [asked.cell])[0].override(dict(map(assignment, asked.assignments)))
    place = f"{asked.table.replace('/', '-')}/{cell.name.replace(' ', '-')}"
    begin = time.perf_counter()

    def tell(trial: TrialRecord) -> None:
        took = time.perf_counter() - begin
        print(f"{took:6.1f} s  trial {trial.number} {trial.state} {trial.value} {dict(trial.values)}", file=sys.stderr)

    found = fh.tune(
        cell.recipe(cell.seeds[0]),
        f"lr={asked.lr}",
        *RANGES[cell.keys["method"]],
        out=asked.runs / place,
        trials=asked.trials,
        objective=OBJECTIVES[cell.metric],
        minutes=asked.minutes,
        final=asked.final,
        compute=Compute(asked.data, asked.device, "auto", asked.precision),
        on_trial=tell,
    )
    kept = ROOT / "results" / "tuning" / place
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("trials.csv", "best.yaml"):
        shutil.copyfile(asked.runs / place / name, kept / name)
    print(f"best {found.value:.2f} with {dict(found.best.values)}; {kept}")
    if found.final is not None:
        print(f"final {found.final['accuracy']} on the test set")


if __name__ == "__main__":
    main()
