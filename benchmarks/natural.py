"""Federations whose clients are natural: train each, calibrate it with CCVR, and tabulate how well it went.

    python benchmarks/natural.py FOLDER --out natural.csv

reads every .npz file of a folder (the layout is in docs/data.md), writes one CSV row per file as soon as it is done,
and prints the table in Markdown; docs/natural.md holds what it printed. A file that can't be measured is named, and the
others go on. Settings belong to a kind of data (`KINDS`), not to a file.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedhead as fh

COLUMNS = (
    "file",
    "clients",
    "samples",
    "classes",
    "model",
    "rounds",
    "accuracy",
    "macro_f1",
    "auroc",
    "worst_client",
    "ccvr_accuracy",
    "ccvr_macro_f1",
    "ccvr_auroc",
    "ccvr_worst_client",
    "worst_auroc",
    "ccvr_worst_auroc",
    "seconds",
)


@dataclass(frozen=True)
class Settings:
    """How the federations of one kind are read and trained."""

    model: str
    rounds: int = 30
    lr: float = 1e-3
    batch_size: int = 32
    epochs: int | None = None  # local epochs; None: 5 for small clients, otherwise 1
    reading: dict[str, Any] = field(default_factory=dict)  # arguments of Federation.load
    ccvr: fh.CCVR = field(default_factory=fh.CCVR)


SMALL = 700  # samples of the largest client: below it a round is too few steps at the usual settings
TABLE = {"missing": "mean", "normalize": "standard"}
KINDS = {
    "table": Settings("mlp(hidden=[64, 64])", reading=TABLE),
    "series": Settings("mlp(hidden=[128, 64])", reading={"normalize": "standard"}),
    "text": Settings("mlp(hidden=[64])", rounds=10, reading={"encode": "hashing(2048)"}),
    "small texts": Settings("mlp(hidden=[64])", rounds=10, lr=1e-2, reading={"encode": "hashing(2048)"}),
    "sound": Settings("mlp(hidden=[128, 64])", reading={"encode": "spectrogram(1.0)", "normalize": "standard"}),
    "images": Settings("digitscnn", rounds=15, reading={"normalize": "standard"}),
    "files": Settings(
        "digitscnn(channels=32)", rounds=20, reading={"size": 32, "normalize": "standard", "augment": "flip"}
    ),
    # Short windows, so that there are many of them; how often a character occurs is a part of the task.
    "characters": Settings(
        "characters",
        rounds=12,
        lr=1e-2,
        batch_size=64,
        epochs=2,
        reading={"encode": "next_character(12)", "samples": 150_000},
        ccvr=fh.CCVR(samples=500, proportional=True),
    ),
}


def kind_of(path: Path) -> str:
    """Return which kind of data a file holds."""
    with np.load(path) as held:
        names = set(held.files)
        axes = held["x"].ndim if "x" in names else 0
        largest = int(np.unique(held["site"], return_counts=True)[1].max())
    if "text" in names:
        return "characters" if "y" not in names else "text" if largest >= SMALL else "small texts"
    if "offsets" in names:
        return "sound" if "rate" in names else "files"
    return "table" if axes == 2 else "series" if "channel_names" in names else "images"


def test_part(path: Path) -> Any:
    """Return the test samples: a fifth of each client's, or whole recordings where samples of one overlap."""
    with np.load(path) as held:
        return held["run"] % 5 == 0 if "run" in held.files else 0.2


def model_for(name: str, federation: fh.Federation) -> Any:
    """Return an architecture by name, or the small network for windows of characters."""
    if name != "characters":
        return name
    (length,) = federation.input_shape
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(int(federation.largest_token or 0) + 1, 16),
        nn.Flatten(),
        nn.Linear(16 * length, 128),
        nn.ReLU(),
        nn.Linear(128, federation.classes),
    )
    return fh.split(net, classifier="4")


def measure(path: Path, seed: int) -> dict[str, Any]:
    """Train one federation, calibrate it, and return its row of the table."""
    settings = KINDS[kind_of(path)]
    begin = time.perf_counter()
    federation = fh.Federation.load(path, test=test_part(path), seed=seed, **settings.reading)
    names = ["f1"] + ["auroc"] * (federation.classes == 2)
    result = fh.run(
        federation,
        model_for(settings.model, federation),
        rounds=settings.rounds,
        local_epochs=settings.epochs or (5 if max(federation.sizes) < SMALL else 1),  # enough steps a round
        batch_size=settings.batch_size,
        optimizer="adam",
        lr=settings.lr,
        stages=[settings.ccvr],
        metrics=names,
        evaluate_every=settings.rounds,
        seed=seed,
    )
    row = {
        "file": path.stem,
        "clients": len(federation),
        "samples": sum(federation.sizes),
        "classes": federation.classes,
        "model": settings.model,
        "rounds": settings.rounds,
    }
    for prefix, record in (("", result.rows[-1]), ("ccvr_", result.stage_rows["ccvr"])):
        row[f"{prefix}accuracy"] = record["accuracy"]
        row[f"{prefix}worst_client"] = min(value for value in record["clients"] if value is not None)
        values = {"macro_f1": record["metrics"]["f1"], **record["metrics"]}
        row |= {f"{prefix}{name}": 100 * value for name, value in values.items() if name != "f1"}
        if own := [value for value in record["client_metrics"].get("auroc", ()) if value is not None]:
            row[f"{prefix}worst_auroc"] = 100 * np.nanmin(own)  # without clients whose test samples lack a class
    return row | {"seconds": time.perf_counter() - begin}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, FedAvg's numbers before CCVR's."""
    lines = [
        "| file | clients | samples | classes | model | accuracy | macro-F1 | AUROC | worst client |",
        "|---|--:|--:|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        pairs = [
            " → ".join("–" if row.get(p + name) in (None, "") else f"{float(row[p + name]):.1f}" for p in ("", "ccvr_"))
            for name in ("accuracy", "macro_f1", "auroc", "worst_client")
        ]
        shown = [row["file"], row["clients"], f"{int(row['samples']):,}", row["classes"], f"`{row['model']}`", *pairs]
        lines.append(f"| {' | '.join(map(str, shown))} |".replace("– → –", "–"))
    return "\n".join(lines)


def main() -> None:
    """Measure all files of a folder, or those that are named; rows that the CSV file holds already are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of files, without .npz")
    parser.add_argument("--out", type=Path, default=Path("natural.csv"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        with options.out.open(newline="", encoding="utf-8") as file:
            rows = {row["file"]: row for row in csv.DictReader(file)}
    for path in sorted(options.folder.glob("*.npz"), key=lambda path: path.stat().st_size):
        if path.stem in rows or (options.only and path.stem not in options.only):
            continue
        try:
            rows[path.stem] = measure(path, options.seed)
        except fh.BadInput as error:
            print(f"{path.stem}: {error}", flush=True)
            continue
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows.values())
        print(table([rows[path.stem]]).splitlines()[-1], flush=True)
    print(table([rows[name] for name in sorted(rows)]))


if __name__ == "__main__":
    main()
