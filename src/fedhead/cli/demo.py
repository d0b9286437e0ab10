"""The command demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.output import print_table

# What the demo compares: FedAvg, with CCVR after it, FedETF, and one message per client without any round of training.
DEMO = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
    "one round": ["rounds=0", "last_rounds=1", "model.hidden=[512]", "stages=[ridge]"],
}


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where the runs go. [default: a new folder runs/demo]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=1, help="How many rounds. [default: the recipe's]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Compare methods on handwritten digits over 10 clients of very different classes, in about a minute.

    \b
    Examples:
      fedhead demo
      fedhead demo --seeds 1 --rounds 2 --out /tmp/demo
    """
    from fedhead.api.run_recipe import run_recipe, unused
    from fedhead.report.page import page
    from fedhead.report.table import Table, mean_std

    out = out or unused(Path("runs") / "demo")
    shorter = [] if rounds is None else [f"rounds={rounds}"]  # one-round has its own, which comes after and counts
    body = []
    for name, assignments in DEMO.items():
        words = [*shorter, *assignments, f"seeds={list(range(seeds))}"]
        runs = run_recipe("digits", words, out=out / name, progress=not quiet)["runs"]
        if runs[0]["rounds"]:
            body.append([name, mean_std([r["accuracy"] for r in runs])])
        for stage in runs[0]["stages"]:
            label = f"{name} + {stage}" if runs[0]["rounds"] else f"{name}: {stage}"
            body.append([label, mean_std([r["stages"][stage]["accuracy"] for r in runs])])
    print("handwritten digits, 10 clients of very different classes; accuracy in %")
    print_table(Table("", ["method", "accuracy"], body))
    print(f"runs:   {out}\nreport: {page.write([out], out / 'report.html')}")
