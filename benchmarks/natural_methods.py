"""Federations whose clients are natural: local training, FedAvg, calibrated, personal and one-round heads compared.

    python benchmarks/natural_methods.py FOLDER --out benchmarks/natural.csv

trains every method on the tables and texts of a folder (the layout is in docs/data.md) for several seeds, writes
one CSV row per file, seed and method as soon as it is done, and prints the tables of docs/natural.md. Rows that the CSV
file holds already are kept. Settings belong to a kind of data (`KINDS` of natural.py), not to a file; for time there
are half as many rounds, and batches of 64.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from natural import KINDS, SMALL, Settings, kind_of, test_part
from torch import nn

import fedhead as fh
from fedhead.report.statistics import interval

BATCH, RAW = 64, 300  # RAW: the most features of which heads are computed without any network
COLUMNS = ("file", "seed", "method", "mean_client", "pooled", "worst_client", "seconds", "clients")
BASELINE = "FedAvg"
KINDS_COMPARED = ("table", "text", "small texts")


@dataclass(frozen=True)
class Plan:
    """One run and the stages after it: each stage's models are one more method of the comparison."""

    method: str
    label: str
    stages: dict[str, Any]  # stages by their label
    features: str = "trained"  # trained: the model's after the rounds; random, raw: there are none


def heads() -> dict[str, Any]:
    """Return the one-round heads and personal heads by name."""
    never: dict[str, Any] = {"absent": "never"}
    return {
        "ridge": fh.Ridge(**never),
        "LDA": fh.LDA(**never),
        "personal ridge": fh.PersonalRidge(**never),
        "personal LDA": fh.PersonalLDA(**never),
    }


def plans(features: int) -> Iterator[Plan]:
    """Yield what is run on a file whose samples have so many features."""
    yield Plan("local", "local training", {})
    after = {"CCVR": fh.CCVR(samples=500), **heads(), "fine-tuning": fh.FineTune()}
    yield Plan("fedavg", BASELINE, {f"{BASELINE} + {name}": stage for name, stage in after.items()})
    yield Plan("ditto", "Ditto", {})
    tuned = fh.FineTuneETF(iterations=3, epochs=1, record=False)
    yield Plan("fedetf", "FedETF", {"FedETF + fine-tuning": tuned})
    yield Plan("fedavg", "", {f"one round, random features: {n}": s for n, s in heads().items()}, "random")
    if features <= RAW:
        yield Plan("fedavg", "", {f"one round, raw features: {n}": s for n, s in heads().items()}, "raw")


def model_of(plan: Plan, settings: Settings, federation: fh.Federation) -> Any:
    """Return the architecture: the kind's own, 512 random ReLU features, or none."""
    if plan.features == "trained":
        return settings.model
    if plan.features == "random":
        return "mlp(hidden=[512])"
    size = int(torch.tensor(federation.input_shape).prod())
    return fh.split(nn.Sequential(nn.Flatten(), nn.Linear(size, federation.classes)), classifier="1")


def measure(path: Path, seed: int, done: set[str]) -> Iterator[dict[str, Any]]:
    """Run all plans on a file, and yield one row per method."""
    settings = KINDS[kind_of(path)]
    federation = fh.Federation.load(path, test=test_part(path), seed=seed, **settings.reading)
    rounds = settings.rounds // 2
    for plan in plans(int(torch.tensor(federation.input_shape).prod())):
        if {plan.label, *plan.stages} - {""} <= done:
            continue
        trained, begin = plan.features == "trained", time.perf_counter()
        result = fh.run(
            federation,
            model_of(plan, settings, federation),
            plan.method,
            rounds=rounds if trained else 0,
            local_epochs=5 if trained and max(federation.sizes) < SMALL else 1,  # as in natural.py
            batch_size=BATCH,
            optimizer="adam",
            lr=settings.lr,
            stages=list(plan.stages.values()),
            evaluate_every=rounds,
            executor="stack",
            seed=seed,
        )
        seconds = time.perf_counter() - begin
        records = {plan.label: result.rows[-1]} if trained else {}
        records |= {label: result.stage_rows[stage.name] for label, stage in plan.stages.items()}
        for label, record in records.items():
            each = [value for value in record["clients"] if value is not None]
            yield {
                "file": path.stem,
                "seed": seed,
                "method": label,
                "mean_client": f"{fmean(each):.3f}",
                "pooled": f"{record['personal_weighted']:.3f}",
                "worst_client": f"{min(each):.3f}",
                "seconds": f"{seconds / len(records):.1f}",
                "clients": " ".join(f"{value:.2f}" for value in each),
            }


# -- tables -------------------------------------------------------------------------------------------
Rows = list[dict[str, str]]


def of_clients(rows: Rows, file: str, method: str) -> list[float]:
    """Return each client's accuracy, the mean over seeds."""
    found = [list(map(float, row["clients"].split())) for row in rows if (row["file"], row["method"]) == (file, method)]
    return [fmean(values) for values in zip(*found, strict=True)]


def mean_of(rows: Rows, file: str, method: str, column: str) -> float:
    """Return the mean of a column over seeds."""
    return fmean(float(row[column]) for row in rows if (row["file"], row["method"]) == (file, method))


def shown(mean: str, differences: list[float]) -> str:
    """Return a mean and the 95 % t-interval of differences from the baseline."""
    found = interval(differences)
    return mean if found is None or not any(differences) else f"{mean} ({found[0]:+.1f} … {found[1]:+.1f})"


def tables(rows: Rows) -> str:
    """Return the accuracies by file, and the mean differences over files, in Markdown."""
    files, methods = sorted({row["file"] for row in rows}), list(dict.fromkeys(row["method"] for row in rows))
    lines = [f"| method | {' | '.join(files)} |", "|---|" + "--:|" * len(files)]
    for method in methods:
        cells = []
        for file in files:
            own, base = of_clients(rows, file, method), of_clients(rows, file, BASELINE)
            cells.append(shown(f"{fmean(own):.1f}", [a - b for a, b in zip(own, base, strict=True)]) if own else "–")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    lines += ["", f"| method | files | mean client − {BASELINE} | worst client − {BASELINE} |", "|---|--:|--:|--:|"]
    for method in methods:
        there = [file for file in files if of_clients(rows, file, method)]
        cells = []
        for column in ("mean_client", "worst_client"):
            gaps = [mean_of(rows, file, method, column) - mean_of(rows, file, BASELINE, column) for file in there]
            cells.append(shown(f"{fmean(gaps):+.1f}", gaps))
        lines.append(f"| {method} | {len(there)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Compare the methods on all tables and texts of a folder, or on those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of files, without .npz")
    parser.add_argument("--out", type=Path, default=Path("natural.csv"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: Rows = []
    if options.out.exists():
        with options.out.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    begin = time.perf_counter()
    paths = [path for path in options.folder.glob("*.npz") if kind_of(path) in KINDS_COMPARED]
    paths = [path for path in paths if path.stem in (options.only or [path.stem])]
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        for seed in range(options.seeds):
            done = {row["method"] for row in rows if (row["file"], row["seed"]) == (path.stem, str(seed))}
            for row in measure(path, seed, done):
                rows.append({name: str(value) for name, value in row.items()})
                with options.out.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)
            print(f"{path.stem}, seed {seed}: after {time.perf_counter() - begin:.0f} s", flush=True)
    print(tables(rows))


if __name__ == "__main__":
    main()
