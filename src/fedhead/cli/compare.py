"""The command compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import ColumnWidth, Labels, labels_of
from fedhead.cli.output import print_table
from fedhead.core.system.text import printable


@command("Compare")
def compare(
    runs: Annotated[list[Path], Argument("Run folders, or folders that contain run folders.", label="RUN")],
    metric: Annotated[str | None, Option("Metric to compare. [default: accuracy]")] = None,
    baseline: Annotated[str | None, Option("Baseline: a method, or the label of a row. [default: fedavg]")] = None,
    by: Annotated[list[str] | None, Option("Recipe key whose values are the columns; may be repeated.")] = None,
    level: Annotated[float, Option("Confidence level of the intervals.")] = 0.95,
    out: Annotated[Path | None, Option("Output file of the tables: .md, .csv or .tex.")] = None,
    diagram: Annotated[Path | None, Option("Output file of a diagram of mean ranks: .pdf, .png or .svg.")] = None,
    width: ColumnWidth = 2,
    label: Labels = None,
) -> None:
    """Compare methods over seeds and data: means, paired differences with intervals and tests, and ranks.

    Differences from the baseline are paired over the same seed and split. Only finished runs count.

    Examples:
      fedhead compare runs/*
      fedhead compare runs/ --baseline fedprox --metric test_loss
      fedhead compare runs/ --by partition --out table.tex
      fedhead compare runs/sweep-digits --diagram ranks.pdf
    """
    from fedhead.api.compare import compare as compare_runs
    from fedhead.report.style import WIDTHS, save

    found = compare_runs(runs, metric=metric, baseline=baseline, by=by or (), level=level, labels=labels_of(label))
    if out is not None:
        found.save(out)
    if diagram is not None:
        save(found.diagram(WIDTHS[width]), diagram)
    if out is None:
        for table in found.tables():
            print_table(table)
    for note in found.notes:
        print(printable(note, 2000))
    for path in (out, diagram):
        if path is not None:
            print(f"written to {path}")
