"""The command demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Option, command
from fedhead.cli.output import print_table
from fedhead.core.components.ranges import AtLeast

# Runs of the demo: FedAvg followed by CCVR; FedETF; ridge regression from one message per client, without training.
DEMO = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
    "one round": ["rounds=0", "last_rounds=1", "model.hidden=[512]", "stages=[ridge]"],
}
NEXT = """
Now try your own data:

  Train on a file with arrays x and y, and calibrate the classifier:
    fedhead run digits dataset=mine.npz test=0.2 'stages=[ccvr]'
  Train on a folder of images with one folder per class:
    fedhead run digits dataset=photos/ size=32 model=simplecnn test=0.2
  Compare methods in one table:
    fedhead sweep digits dataset=mine.npz test=0.2 'method=[fedavg, fedprox, fedetf]' --seeds 3"""


@command("Start")
def demo(
    out: Annotated[Path | None, Option("Output folder. [default: a new folder runs/demo]")] = None,
    seeds: Annotated[int, AtLeast(1), Option("Number of seeds.")] = 3,
    rounds: Annotated[int | None, AtLeast(1), Option("Number of rounds. [default: the recipe's]")] = None,
    quiet: Annotated[bool, Option("Show no progress.")] = False,
) -> None:
    """Compare methods on handwritten digits over 10 clients, in about a minute.

    Examples:
      fedhead demo
      fedhead demo --seeds 1 --rounds 2 --out /tmp/demo
    """
    from fedhead.api.run_recipe import run_recipe, unused
    from fedhead.report.page import page
    from fedhead.report.table import Table, mean_std

    out = out or unused(Path("runs") / "demo")
    shorter = [] if rounds is None else [f"rounds={rounds}"]  # the one-round run overrides it with its own rounds=0
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
    print(NEXT)
