"""The commands ls, explain and new, about components."""

from __future__ import annotations

import json
from typing import Annotated, Literal, get_args

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.output import print_table

Kind = Literal[
    "methods", "stages", "datasets", "models", "heads", "partitions", "executors", "analyses", "metrics", "uploads",
    "protections", "aggregators", "samplers", "callbacks", "loggers", "recipes", "keys",
]  # fmt: skip


@command("Look into")
def ls(
    kind: Annotated[Kind, Argument(f"What to list: {', '.join(get_args(Kind))}.", label="KIND")],
    as_json: Annotated[bool, Option("Print one line of JSON.", flag="--json")] = False,
) -> None:
    """List components of a kind, recipes, or recipe keys.

    Components of installed packages are included.

    Examples:
      fedhead ls methods
      fedhead ls recipes --json
    """
    from fedhead.api.listing import list_components
    from fedhead.api.reference import written
    from fedhead.report.table import Table

    entries = list_components(kind)
    if as_json:
        print(json.dumps(entries))
        return
    body = []
    for entry in entries:
        words = entry["parameters"]
        parameters = words if isinstance(words, str) else ", ".join(f"{k}={written(v)}" for k, v in words.items())
        body.append([entry["name"], parameters, entry["description"], entry["from"]])
    print_table(Table("", ["name", "parameters", "description", "from"], body), left=4)


@command("Look into")
def explain(name: Annotated[str, Argument("Recipe key, or name of a component.", label="NAME")]) -> None:
    """Explain a recipe key, or a component and its parameters.

    Examples:
      fedhead explain local_epochs
      fedhead explain ccvr
    """
    from fedhead.api.listing import explain as explanation

    print(explanation(name))


@command("Start")
def new(
    kind: Annotated[str, Argument("Kind of component: method, stage or model.")],
    name: Annotated[str, Argument("Name of the component, such as FedMine.")],
    out: Annotated[str, Option("Output folder.")] = ".",
) -> None:
    """Write a commented method, stage or model of your own, with its test.

    Examples:
      fedhead new method FedMine
      fedhead new model mynet --out plugins
    """
    from fedhead.api.new import new as write
    from fedhead.api.new import next_command

    paths = write(kind, name, out)
    for path in paths:
        print(f"wrote {path}")
    print(f"next: python -m pytest {paths[-1]} (pip install pytest), then {next_command(kind, name, out)}")
