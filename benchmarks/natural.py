"""Federations whose clients are natural: train each, calibrate it with CCVR, and tabulate how well it went.

    python benchmarks/natural.py FOLDER --out natural.csv

reads every .npz file of a folder (the layout is in docs/data_files.md), writes one CSV row per file as soon as it is
done, and prints the table in Markdown; docs/natural.md shows it. A file that can't be measured is named, and the others
go on. Compute belong to a kind of data (`KINDS` of natural_files.py), not to a file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from natural_files import KINDS, Row, kind_of, load, parser, run

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


def measure(path: Path, seed: int) -> Row:
    """Train one federation, calibrate it, and return its row of the table."""
    settings = KINDS[kind_of(path)]
    begin = time.perf_counter()
    federation = load(path, seed, **settings.reading)
    names = ["f1"] + ["auroc"] * (federation.classes == 2)
    result = fh.run(
        federation,
        settings.model,
        rounds=settings.rounds,
        local_epochs=settings.epochs_of(federation),
        batch_size=settings.batch_size,
        optimizer="adam",
        lr=settings.lr,
        stages=[settings.ccvr],
        metrics=names,
        evaluate_every=settings.rounds,
        seed=seed,
    )
    row: Row = {
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


def table(rows: list[Row]) -> str:
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
    """Measure all files of a folder, or those that are named."""
    arguments = parser(__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()

    def rows_of(path: Path, there: list[Row]) -> Iterator[Row]:
        if there:
            return
        row = measure(path, options.seed)
        print(table([row]).splitlines()[-1], flush=True)
        yield row

    rows = run(options, COLUMNS, rows_of)
    print(table(sorted(rows, key=lambda row: str(row["file"]))))


if __name__ == "__main__":
    main()
