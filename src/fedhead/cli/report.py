"""The commands report and board: one page about runs, written or served."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import Labels, labels_of
from fedhead.cli.output import interruptible, print_table
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.text import printable


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

    found = content.load(runs, labels_of(label))
    for metric in ("accuracy", "personal"):
        if metric in found.metrics:
            print_table(values_table(found.compared(metric, gains=False)))
    if found.studies:
        print(f"studies: {len(found.studies)}")
    for note in found.notes:
        print(printable(note, 2000))
    options = [*(["--title", title] if title else []), *(word for text in label or () for word in ("--label", text))]
    made_by = shlex.join(["fedhead", "report", *map(str, runs), "--out", str(out), *options])
    print(f"report: {page.save(page.page(found, made_by, title), out)}")


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
