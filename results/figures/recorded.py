"""Draw CCVR's Figures 4, 7 and 14 at the paper's scale from results.csv, split and seed 0."""

from __future__ import annotations

import csv
from pathlib import Path

from fedhead.papers.analyses import plots
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.results import Results, digest
from fedhead.report.style import save

HERE = Path(__file__).parent
VIRTUAL = {"50": 50, "100": 100, "500": 500, "1000": 1000, "2000": 2000}
REAL = {"100": 100, "1000": 1000, "whole-data": 5000}  # CIFAR-10 has 5,000 training samples per class
FIGURES = {  # table, amounts, label, methods
    "figure4": ("ccvr/table5", REAL, "real features per class", ("fedavg", "fedprox")),
    "figure7": ("ccvr/table3", VIRTUAL, "virtual features per class", ("fedavg",)),
    "figure14": ("ccvr/table3", VIRTUAL, "virtual features per class", ("fedprox", "moon")),
}


def draw(name: str, results: Results) -> None:
    """Draw a figure, and write its numbers as CSV beside it."""
    table, amounts, label, methods = FIGURES[name]
    digests = {cell.name: digest(cell) for cell in tables.load(table).cells()}
    recorded = {row.digest: row.value for row in results if not row.split and not row.seed and row.value is not None}
    curves, before = {}, {}
    for method in methods:
        for alpha in ("0.5", "0.1", "0.05"):
            names = [f"{method} {choice} cifar10-{alpha}" for choice in ("before", *amounts)]
            start, *after = (recorded[digests[cell]] for cell in names)
            curves[f"{method} dirichlet({alpha})"] = list(amounts.values()), after
            before[f"{method} dirichlet({alpha})"] = start
    save(plots.amounts(curves, before, label), HERE / "ccvr" / f"{name}.svg")
    with (HERE / "ccvr" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [(run, x, y) for run, points in curves.items() for x, y in zip(*points, strict=True)]
        rows = [*((run, 0, value) for run, value in before.items()), *rows]
        rounded = [(run, x, f"{value:.2f}") for run, x, value in rows]
        csv.writer(file, lineterminator="\n").writerows([("run", label, "accuracy"), *rounded])


if __name__ == "__main__":
    for figure in FIGURES:
        draw(figure, Results(HERE.parent))
