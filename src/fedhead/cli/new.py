"""The command new."""

from __future__ import annotations

from typing import Annotated

from fedhead.cli.app import Argument, Option, command


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
