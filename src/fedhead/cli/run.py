"""The commands run, validate and demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
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

# What the demo compares: FedAvg, with CCVR after it, FedETF, and one message per client without any round of training.
DEMO = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
    "one round": ["rounds=0", "last_rounds=1", "model.hidden=[512]", "stages=[ridge]"],
}


@app.command()
def run(
    recipe: RecipeName,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: a new one under runs/]")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out where it was stopped; begin it if there is none."),
    ] = False,
    allow_changed_code: AllowChangedCode = False,
    data: DataFolder = None,
    device: Device = "auto",
    executor: ExecutorName = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: by the model's size]")] = None,
    logger: Annotated[
        list[str] | None,
        typer.Option("--logger", help="Also log to csv, tensorboard, mlflow or wandb; as often as there are such."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The last line of output is the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train by a recipe, in a run folder from which it can be resumed and reported.

    \b
    Examples:
      fedhead run digits
      fedhead run digits method=fedprox method.mu=0.1 partition='dirichlet(0.05)' rounds=10 seed=3 --json
      fedhead run my.yaml 'stages=[ccvr]' --out runs/mine --device cuda
      fedhead run my.yaml 'stages=[ccvr]' --out runs/mine --resume
      fedhead run digits 'seeds=[0, 1, 2]'
    """
    from fedhead.api.run_recipe import raise_failed, run_recipe

    with interruptible():
        result = run_recipe(
            recipe,
            assignments or [],
            out=out,
            resume=resume,
            allow_changed_code=allow_changed_code,
            data=data,
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
    raise_failed(result.get("failed", {}))


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


@app.command()
def validate(recipe: RecipeName, assignments: Assignments = None) -> None:
    """Check a recipe before any compute: names, types, ranges, and that data set and model fit.

    \b
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
