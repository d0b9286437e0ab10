"""The command that shows runs while they go on: board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.output import interruptible


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

    with interruptible(lambda: "the board is closed; the runs go on"):
        serve(runs, host, port)
