"""The commands compare, report and board: tables and a page about runs, written or served."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import ColumnWidth, Labels, labels_of
from fedhead.cli.output import interruptible, print_table
from fedhead.core.components.ranges import AtLeast, AtMost
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

    comparison = compare_runs(runs, metric=metric, baseline=baseline, by=by or (), level=level, labels=labels_of(label))
    if out is not None:
        comparison.save(out)
    if diagram is not None:
        save(comparison.diagram(WIDTHS[width]), diagram)
    if out is None:
        for table in comparison.tables():
            print_table(table)
    for note in comparison.notes:
        print(printable(note, 2000))
    for path in (out, diagram):
        if path is not None:
            print(f"written to {path}")


@command("Compare")
def report(
    runs: Annotated[list[Path], Argument("Folders of runs or studies, or folders that contain some.", label="RUN")],
    out: Annotated[Path, Option("Output file of the page.")] = Path("report.html"),
    title: Annotated[str, Option("Title of the page. [default: data sets and partitions]")] = "",
    label: Labels = None,
) -> None:
    """Print a table of runs, and write a self-contained HTML page with tables and curves.

    Unfinished and broken runs are listed and excluded from the means.

    Examples:
      fedhead report runs/*
      fedhead report runs/demo --out demo.html
      fedhead report runs/ --label fedavg=FedAvg --label 'fedprox (mu=0.1)=FedProx, strong'
    """
    from fedhead.report.compare.comparison_text import values_table
    from fedhead.report.page import content, page

    contents = content.load(runs, labels_of(label))
    for metric in ("accuracy", "personal"):
        if metric in contents.metrics:
            print_table(values_table(contents.compared(metric, gains=False)))
    if contents.studies:
        print(f"studies: {len(contents.studies)}")
    for note in contents.notes:
        print(printable(note, 2000))
    options = [*(["--title", title] if title else []), *(word for text in label or () for word in ("--label", text))]
    made_by = shlex.join(["fedhead", "report", *map(str, runs), "--out", str(out), *options])
    print(f"report: {page.page(contents, made_by, title).save(out)}")


@command("Compare")
def board(
    runs: Annotated[list[Path], Argument("Folders in which runs are or will be; they may be empty.", label="FOLDER")],
    host: Annotated[
        str, Option("Address to listen at; other machines can reach addresses other than the default.")
    ] = "127.0.0.1",
    port: Annotated[int, AtLeast(0), AtMost(65535), Option("Port to listen at; 0 selects a free one.")] = 8080,
    label: Labels = None,
) -> None:
    """Show a live page of runs in a browser: progress, curves, time left and clients.

    Examples:
      fedhead board runs/
      fedhead board runs/sweep --port 0
    """
    from fedhead.report.page.board import serve

    with interruptible("the board is closed; the runs go on"):
        serve(runs, host, port, labels_of(label))
