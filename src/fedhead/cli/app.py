"""Typer app with which every command registers itself."""

from __future__ import annotations

import typer
import typer.core

typer.core.HAS_RICH = False  # with rich installed, typer 0.20 writes "\[required]" even where the markup is off
app = typer.Typer(
    name="fedhead",
    help="Federated classification on non-IID data: run, compare and report.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        import fedhead

        print(fedhead.__version__)
        raise typer.Exit
