"""The command wire."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.core.components.ranges import AtLeast


@command("Look into")
def wire(
    method: Annotated[str, Argument("Method, see `fedhead ls methods`, or the YAML file of a recipe.")],
    stages: Annotated[
        list[str] | None, Argument("Stages after the rounds, and recipe keys such as model=resnet20.", label="STAGES")
    ] = None,
    schema: Annotated[Path | None, Option("YAML file with the schema of the sites' tables.")] = None,
    min_class_count: Annotated[int, AtLeast(1), Option("Smallest class of which a site sends statistics.")] = 5,
    as_json: Annotated[bool, Option("Print every tensor as JSON.", flag="--json")] = False,
) -> None:
    """List all messages between server and clients and what they reveal; nothing is trained on your data.

    Examples:
      fedhead wire fedavg
      fedhead wire fedavg ridge model=resnet20 dataset=cifar10
      fedhead wire fedavg missing=mean --schema schema.yaml
      fedhead wire my.yaml 'uploads=[half]' --json
    """
    from fedhead.api.privacy.wire import wire_of_recipe
    from fedhead.cli.output import print_table
    from fedhead.data.inputs.table_schema import TableSchema
    from fedhead.recipes.recipe import Recipe, load

    keys = [word for word in stages or () if re.match(r"[\w.]+=", word)]
    names = [word for word in stages or () if word not in keys]
    if method.endswith((".yaml", ".yml")):
        recipe = load(method, keys + ([f"stages=[{', '.join(names)}]"] if names else []))
    else:
        assignments = [f"method={method}", f"stages=[{', '.join(names)}]"]
        recipe = Recipe(dataset="digits", clients=3).override([*assignments, *keys])
    table = None if schema is None else TableSchema.read(schema)
    entries = wire_of_recipe(recipe, min_class_count, schema=table)
    if as_json:
        print(json.dumps(entries.to_json()))
        return
    for message in entries.tables():
        print_table(message, left=7)
        print()
