"""The command audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.core.components.ranges import AtLeast


@command("Look into")
def audit(
    target: Annotated[Path, Argument("Run folder, or file of a site's statistics.", label="RUN|STATISTICS")],
    earlier: Annotated[Path | None, Argument("File of earlier statistics of the same site.")] = None,
    min_class_count: Annotated[int, AtLeast(1), Option("Smallest class of which sites send statistics.")] = 5,
    shadows: Annotated[int, AtLeast(0), Option("Shadow models of the membership test; 0: without it.")] = 16,
    releases: Annotated[int, AtLeast(100), Option("Noisy releases with a canary, and as many without it.")] = 2000,
    seed: Annotated[int, AtLeast(0), Option("Seed of the attacks.")] = 0,
    as_json: Annotated[bool, Option("Print one line of JSON.", flag="--json")] = False,
) -> None:
    """Attack a simulated run or a site's statistics, and report what an attacker learns.

    Examples:
      fedhead audit runs/mine
      fedhead audit site.safetensors yesterday.safetensors
    """
    from fedhead.api.privacy.audit import audit
    from fedhead.cli.output import interruptible, print_table

    options = {"min_class_count": min_class_count, "shadows": shadows, "releases": releases, "seed": seed}
    with interruptible():
        result = audit(target, earlier, **options)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        print_table(result.table(), left=3)
