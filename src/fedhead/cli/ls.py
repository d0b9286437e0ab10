"""The commands ls and explain."""

from __future__ import annotations

import json
from typing import Annotated, Literal, get_args

import typer

from fedhead.cli.app import app
from fedhead.cli.output import print_table

Kind = Literal[
    "methods", "stages", "datasets", "models", "heads", "partitions", "executors", "analyses", "metrics", "uploads",
    "aggregators", "samplers", "recipes", "keys",
]  # fmt: skip


@app.command()
def ls(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"What to list: {', '.join(get_args(Kind))}.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """List what can be named: fedhead's own and what installed packages add, with where each comes from.

    \b
    Examples:
      fedhead ls methods
      fedhead ls recipes --json
    """
    from fedhead.api.listing import list_components
    from fedhead.report.table import Table

    entries = list_components(kind)
    if as_json:
        print(json.dumps(entries))
        return
    body = []
    for entry in entries:
        words = entry["parameters"]
        parameters = words if isinstance(words, str) else ", ".join(f"{k}={v}" for k, v in words.items())
        body.append([entry["name"], parameters, entry["description"], entry["from"]])
    print_table(Table("", ["name", "parameters", "description", "from"], body), left=4)


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
