"""The commands run, validate and demo."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.options import (
    AllowChangedCode,
    Assignments,
    Compile,
    CompileName,
    DataFolder,
    Device,
    ExecutorName,
    Precision,
    PrecisionName,
    RecipeName,
    TransportName,
)
from fedhead.cli.output import interruptible, print_run, print_table
from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from fedhead.engine.rounds.observer import Observer
    from fedhead.recipes.recipe import Recipe

# What the demo compares: FedAvg, with CCVR after it, FedETF, and one message per client without any round of training.
DEMO = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
    "one-round": ["rounds=0", "last_rounds=1", "model.hidden=[512]", "stages=[ridge]"],
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
    precision: PrecisionName = Precision.fp32,
    compile: CompileName = Compile.auto,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: by the model's size]")] = None,
    transport: Annotated[
        TransportName, typer.Option(help="All clients in this process, or one process per client, on Flower.")
    ] = TransportName.simulation,
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
      fedhead run my.yaml test=leave-one-site-out
      fedhead run digits clients=3 rounds=3 --transport flower
    """
    from fedhead.api.run_recipe import run_recipe
    from fedhead.engine.experiment.compute import Compute
    from fedhead.recipes.parts import LOGGER_PART
    from fedhead.recipes.recipe import load
    from fedhead.runs.progress import Progress
    from fedhead.runs.recorded_code import warn_of_changes
    from fedhead.runs.run_folder import rounds_done
    from fedhead.runs.seeds import raise_failed, which

    if resume and out is None:
        raise BadInput("--resume needs --out: name the run folder that is to go on")
    found = load(recipe, assignments or [])
    if not resume:  # else the run itself compares, and refuses
        warn_of_changes(recipe, [found])
    loggers = LOGGER_PART.build(logger or [], found.folders)
    compute = Compute(data, device, executor, precision.value, threads, compile.value, allow_changed_code)
    name = f"{Path(recipe).stem}-{found.method.rpartition(':')[2]}"
    out = out or _unused(Path("runs") / (name if found.seeds else f"{name}-seed{found.seed}"))
    over_flower = transport is TransportName.flower

    def stopped() -> str:
        options = {
            "--data": data,
            "--device": None if device == "auto" else device,
            "--executor": None if executor == "auto" else executor,
            "--precision": None if precision is Precision.fp32 else precision.value,
            "--compile": None if compile is Compile.auto else compile.value,
            "--transport": transport.value if over_flower else None,
        }
        words = ["fedhead", "run", recipe, *(assignments or []), "--out", str(out)]
        words += [word for name, value in options.items() if value is not None for word in (name, str(value))]
        words += ["--allow-changed-code"] if allow_changed_code else []
        words += [word for text in logger or [] for word in ("--logger", text)]
        checkpoint = rounds_done(out)
        if checkpoint is None:
            return "stopped before the first round; nothing was written"
        # a checkpoint is written before its round is shown: an interrupt may come between
        done = max(checkpoint, bar.last or 0)
        at = f"after round {done} of {found.rounds}" if done else "before the first round"
        return f"stopped {at}; go on with: {shlex.join([*words, '--resume'])}"

    bar = Progress(quiet)
    with interruptible(stopped), bar:

        def observers(one: Recipe, number: int, runs: int) -> list[Observer]:
            label = found.method if runs == 1 else f"{found.method} (seed {which(one)})"
            return [bar.observer(label, runs * found.rounds, number * found.rounds)]

        result = run_recipe(
            found,
            out,
            compute,
            resume=resume,
            over_flower=over_flower,
            loggers=loggers,
            observers=observers,
        )
    if as_json:
        print(json.dumps(result))
    else:
        print_run(result, complete=resume and bar.last is None)
    raise_failed(result.get("diverged", {}), result.get("damaged", {}))


def _unused(path: Path) -> Path:
    """The path, or the first of path-2, path-3 … that is not there yet."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


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
    from fedhead.recipes.recipe import load
    from fedhead.report.compare.measured import of_runs
    from fedhead.report.page import page
    from fedhead.report.table import Table, mean_std
    from fedhead.runs import read_runs
    from fedhead.runs.progress import Progress
    from fedhead.runs.run import execute

    out = out or _unused(Path("runs") / "demo")
    shorter = [] if rounds is None else [f"rounds={rounds}"]  # one-round has its own, which comes after and counts
    recipes = [
        (name, load("digits", [*shorter, *assignments, f"seed={seed}"]))
        for name, assignments in DEMO.items()
        for seed in range(seeds)
    ]
    rounds_of_all, done = sum(recipe.rounds for _, recipe in recipes), 0
    with Progress(quiet) as bar:
        for name, recipe in recipes:
            watch = bar.observer(f"{name} (seed {recipe.seed})", rounds_of_all, done)
            execute(recipe, out / f"{name}-seed{recipe.seed}", observers=[watch])
            done += recipe.rounds
    recipe = recipes[0][1]
    print(f"{recipe.dataset}, {recipe.clients} clients by {recipe.partition}, {recipe.rounds} rounds; accuracy in %")
    body = []
    for name in DEMO:  # each by itself, so that no label lists the settings in which they differ
        runs = read_runs.load_runs([out / f"{name}-seed{seed}" for seed in range(seeds)])
        for stage in ("", *runs[0].recipe.stages):
            values = [m.values["accuracy"] for m in of_runs(runs) if m.stage == stage and "accuracy" in m.values]
            label = f"{runs[0].recipe.method} + {stage}" if stage else runs[0].recipe.method
            if values:  # without any round there is an accuracy after the stage alone
                body.append(["one round: ridge" if name == "one-round" else label, mean_std(values)])
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
