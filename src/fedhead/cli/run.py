"""The commands run, validate and demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Option, command
from fedhead.cli.options import (
    AllowChangedCode,
    Assignments,
    Compile,
    DataFolder,
    Device,
    ExecutorName,
    Precision,
    RecipeName,
)
from fedhead.cli.output import interruptible, print_run, print_table
from fedhead.core.components.ranges import AtLeast


@command("Start")
def run(
    recipe: RecipeName,
    assignments: Assignments = None,
    out: Annotated[Path | None, Option("Run folder. [default: a new one under runs/]")] = None,
    resume: Annotated[bool, Option("Continue the interrupted run in --out, or start a new one.")] = False,
    allow_changed_code: AllowChangedCode = False,
    data_dir: DataFolder = None,
    device: Device = "auto",
    executor: ExecutorName = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    threads: Annotated[int | None, AtLeast(1), Option("Number of CPU threads. [default: by the model's size]")] = None,
    logger: Annotated[
        list[str] | None, Option("Logger besides the run folder: csv, tensorboard, mlflow or wandb; may be repeated.")
    ] = None,
    as_json: Annotated[bool, Option("Print the result as JSON in the last line.", flag="--json")] = False,
    quiet: Annotated[bool, Option("Show no progress.")] = False,
) -> None:
    """Train by a recipe, in a run folder that can be resumed and reported.

    Examples:
      fedhead run digits
      fedhead run digits method=fedprox method.mu=0.1 partition='dirichlet(0.05)' rounds=10 seed=3 --json
      fedhead run my.yaml 'stages=[ccvr]' --out runs/mine --device cuda
      fedhead run my.yaml 'stages=[ccvr]' --out runs/mine --resume
    """
    from fedhead.api.run_recipe import run_recipe

    with interruptible():
        result = run_recipe(
            recipe,
            assignments or [],
            out=out,
            resume=resume,
            allow_changed_code=allow_changed_code,
            data_dir=data_dir,
            device=device,
            executor=executor,
            precision=precision,
            compile=compile,
            threads=threads,
            loggers=logger or [],
            progress=not quiet,
        )
    if as_json:
        print(json.dumps(result))
    else:
        print_run(result)


@command("Start")
def validate(recipe: RecipeName, assignments: Assignments = None) -> None:
    """Check a recipe without training: names, types, ranges, and that data set and model fit.

    Examples:
      fedhead validate digits
      fedhead validate my.yaml method=fedprox method.mu=0.1
    """
    from fedhead.recipes.experiment import build_experiment
    from fedhead.recipes.recipe import load

    r = load(recipe, assignments or [])
    sizes = [sum(p.numel() for p in model.parameters()) for model in build_experiment(r).models]
    names = [r.model] if isinstance(r.model, str) else r.model
    models = ", ".join(f"{name} of {size:,} parameters" for name, size in zip(names, sizes, strict=True))
    stages = "".join(f" + {stage}" for stage in r.stages)
    print(f"ok: {r.method}{stages} on {r.dataset}, {r.clients} clients by {r.partition}, {r.rounds} rounds, {models}")


# -- demo ---------------------------------------------------------------------------------------------
# Runs of the demo: FedAvg followed by CCVR; FedETF; ridge regression from one message per client, without training.
DEMO = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
    "one round": ["rounds=0", "last_rounds=1", "model.hidden=[512]", "stages=[ridge]"],
}
NEXT = """
Now try your own data (after `make demo`: `. .venv/bin/activate` first). Other settings are those of the recipe digits:

  Train on a file with arrays x and y, and calibrate the classifier:
    fedhead run digits dataset=mine.npz test=0.2 normalize=standard 'stages=[ccvr]'
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
        words = [*shorter, *assignments]
        runs = [
            run_recipe("digits", [*words, f"seed={seed}"], out=out / name / f"seed{seed}", progress=not quiet)
            for seed in range(seeds)
        ]
        if runs[0]["rounds"]:
            body.append([name, mean_std([r["accuracy"] for r in runs])])
        for stage in runs[0]["stages"]:
            label = f"{name} + {stage}" if runs[0]["rounds"] else f"{name}: {stage}"
            body.append([label, mean_std([r["stages"][stage]["accuracy"] for r in runs])])
    print("handwritten digits, 10 clients of very different classes; accuracy in %")
    print_table(Table("", ["method", "accuracy"], body))
    print(f"runs:   {out}\nreport: {page.write([out], out / 'report.html')}")
    print(NEXT)
