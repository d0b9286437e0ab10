"""The commands report and board: one page about runs, written or served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.output import interruptible, print_table


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or studies, or around some.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Compare runs: a table here, and one self-contained HTML page with tables and curves.

    Unfinished and broken runs are listed and excluded from the means.

    \b
    Examples:
      fedhead report runs/*
      fedhead report runs/demo --out demo.html
    """
    from fedhead.report.compare.comparison_text import values_table
    from fedhead.report.page import content, page

    found = content.load(runs)
    for metric in ("accuracy", "personal"):
        if metric in found.metrics:
            print_table(values_table(found.compared(metric, gains=False)))
    if found.studies:
        print(f"studies: {len(found.studies)}")
    for note in found.notes:
        print(note)
    print(f"report: {page.save(page.page(found), out)}")


@app.command()
def board(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders in which runs are or will be.")],
    host: Annotated[str, typer.Option(help="Address to listen at; others than loopback can be reached.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8080,
) -> None:
    """Show the report's page in a browser, up to date while runs go on: progress, curves, time left, clients.

    \b
    Examples:
      fedhead board runs/
      fedhead board runs/sweep --port 0
    """
    from fedhead.report.page.board import serve

    with interruptible("the board is closed; the runs go on"):
        serve(runs, host, port)
