"""The command new."""

from __future__ import annotations

import typer

from fedhead.cli.app import app


@app.command()
def new(
    kind: str = typer.Argument(help="method, stage or model."),
    name: str = typer.Argument(help="What it is to be called, such as FedMine."),
    out: str = typer.Option(".", help="The folder to write to."),
) -> None:
    """Write a commented method, stage or model of your own, with its test.

    \b
    Examples:
      fedhead new method FedMine
      fedhead new model mynet --out plugins
    """
    from fedhead.api.new import new as write
    from fedhead.api.new import next_command

    for path in write(kind, name, out):
        print(f"wrote {path}")
    print(f"next: pytest {out}, then {next_command(kind, name, out)}")
