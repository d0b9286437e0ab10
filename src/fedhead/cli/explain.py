"""The command explain."""

from __future__ import annotations

from typing import Annotated

import typer

from fedhead.cli.app import app


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Recipe key, or name of a component.")],
) -> None:
    """Explain a recipe key, or a method, stage or other component with its parameters.

    \b
    Examples:
      fedhead explain local_epochs
      fedhead explain ccvr
    """
    from fedhead.api.reference import explain as explanation

    print(explanation(name))
