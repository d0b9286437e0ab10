"""Commands that compute: run, demo."""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhead.cli import app
from fedhead.cli.inspecting import Assignments, DataFolder, RecipeName, print_results
from fedhead.core.errors import BadInput

if TYPE_CHECKING:
    from fedhead.experiment.recipe import Recipe
    from fedhead.experiment.run import Settings

Row = dict[str, Any]
# What the demo compares: FedAvg, with CCVR after it, and FedETF.
CONTESTANTS = {
    "fedavg": ["method=fedavg", "stages=[ccvr]", "stage.ccvr.samples=500"],
    "fedetf": ["method=fedetf"],
}


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Executor(StrEnum):
    """How clients are computed."""

    auto = "auto"
    loop = "loop"
    stack = "stack"
    lanes = "lanes"


class Engine(StrEnum):
    """Where the clients are."""

    simulation = "simulation"
    flower = "flower"


class Precision(StrEnum):
    """What to compute in."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


@app.command()
def run(
    recipe: RecipeName,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: a new one under runs/]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it was stopped.")] = False,
    data: DataFolder = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    executor: Annotated[
        Executor, typer.Option(help="Clients one by one, stacked, or one GPU stream each.")
    ] = Executor.auto,
    precision: Annotated[Precision, typer.Option(help="What to compute in.")] = Precision.fp32,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: by the model's size]")] = None,
    engine: Annotated[
        Engine, typer.Option(help="All clients in this process, or one process a client, on Flower.")
    ] = Engine.simulation,
    together: Annotated[bool, typer.Option("--together", help="Train all seeds in one stack.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard in the folder.")] = False,
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
      fedhead run digits 'seeds=[0, 1, 2]' --together
      fedhead run digits clients=3 rounds=3 --engine flower
    """
    from fedhead.experiment.build import validate
    from fedhead.experiment.recipe import load
    from fedhead.experiment.run import Settings

    if resume and out is None:
        raise BadInput("--resume needs --out: name the run folder that is to go on")
    found = load(recipe, assignments or [])
    validate(found)
    settings = Settings(data, device.value, executor.value, precision.value, threads, tensorboard, engine.value)
    out = out or _free(Path("runs") / f"{Path(recipe).stem}-{found.method}-seed{found.seed}")
    if together and not found.seeds:
        raise BadInput("--together joins several seeds: give them, as in 'seeds=[0, 1, 2]'")
    result = _run_seeds(found, out, settings, resume, quiet, together)
    if as_json:
        print(json.dumps(result))
    else:
        _print_result(result)


def _run_seeds(recipe: Recipe, out: Path, settings: Settings, resume: bool, quiet: bool, together: bool) -> Row:
    """The recipe's run; with a list of seeds one a seed, in folders of their own, and the means in the end."""
    from fedhead.experiment.run import execute, execute_together

    seeds = [recipe.override([f"seed={seed}"]) for seed in recipe.seeds]
    folders = [out / f"seed{r.seed}" for r in seeds]
    with progress(recipe.rounds * max(len(seeds), 1), quiet) as tell:
        on_row = functools.partial(tell, recipe.method)
        if not seeds:
            return execute(recipe, out, settings, resume=resume, on_row=on_row)
        if together:
            results = execute_together(seeds, folders, settings, resume=resume, on_row=on_row)
        else:
            pairs = zip(seeds, folders, strict=True)
            results = [execute(r, folder, settings, resume=resume, on_row=on_row) for r, folder in pairs]
    means = {name: _mean([r[name] for r in results]) for name in ("accuracy", "accuracy_mean", "personal")}
    totals = {name: sum(r[name] for r in results) for name in ("bytes_up", "bytes_down", "seconds")}
    totals["preparing"] = max(r.get("preparing") or 0.0 for r in results)  # runs that train together share it
    stages = {name: _mean([r["stages"][name] for r in results]) for name in recipe.stages}
    measured = {
        name: {
            figure: _mean([r["stage_metrics"][name][figure] for r in results]) for figure in ("accuracy", "personal")
        }
        for name in recipe.stages
    }
    return {
        "run": str(out),
        **means,
        "stages": stages,
        "personal_stages": {name: figures["personal"] for name, figures in measured.items()},
        "stage_metrics": measured,
        **totals,
        "seed": list(recipe.seeds),
        "runs": results,
    }


def _mean(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return statistics.fmean(there) if there else None


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3 … that is not there yet."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _print_result(result: Row) -> None:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f} %"

    print(f"accuracy    {percent(result['accuracy'])}")
    if result["personal"] is not None:
        print(f"personal    {percent(result['personal'])}")
    for name, row in result["stage_metrics"].items():
        figures = [("accuracy", row["accuracy"]), ("personal", row["personal"])]
        print(f"  + {name}: {', '.join(f'{word} {percent(value)}' for word, value in figures if value is not None)}")
    print(f"traffic     {result['bytes_up'] / 1e6:,.1f} MB up, {result['bytes_down'] / 1e6:,.1f} MB down")
    if result.get("client_bytes"):
        each = {way: f"{value / 1e3:,.1f} kB {way}" for way, value in result["client_bytes"].items()}
        print(f"            of which a client in a round {each['up']}, {each['down']}")
    prepared = result.get("preparing") or 0.0
    print(f"time        {result['seconds']:.1f} s" + (f", after {prepared:.1f} s of compiling" if prepared else ""))
    print(f"run         {result['run']}")


@contextmanager
def progress(rounds: int, quiet: bool) -> Iterator[Callable[[str, Row], None]]:
    """A progress bar on the standard error; plain lines where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:

        def line(label: str, row: Row) -> None:
            if not quiet:
                print(f"{label}: round {row['round']}{_figure(row)}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description:<36}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=rounds)
        yield lambda label, row: bar.update(task, advance=1, description=f"{label}, round {row['round']}{_figure(row)}")


def _figure(row: Row) -> str:
    name = "accuracy" if row.get("accuracy") is not None else "personal"
    return f", {row[name]:.2f} %" if row.get(name) is not None else ""


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where the runs go. [default: a new folder runs/demo]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Compare methods on handwritten digits over 10 clients of very different classes, in about a minute.

    \b
    Examples:
      fedhead demo
      fedhead demo --seeds 1 --out /tmp/demo
    """
    from fedhead.experiment.recipe import load
    from fedhead.experiment.run import Settings, execute
    from fedhead.report import page, tables

    out = out or _free(Path("runs") / "demo")
    recipes = [
        (name, load("digits", [*assignments, f"seed={seed}"]))
        for name, assignments in CONTESTANTS.items()
        for seed in range(seeds)
    ]
    with progress(sum(recipe.rounds for _, recipe in recipes), quiet) as on_row:
        for name, recipe in recipes:
            folder, label = out / f"{name}-seed{recipe.seed}", f"{name} (seed {recipe.seed})"
            execute(recipe, folder, Settings(), on_row=functools.partial(on_row, label))
    recipe = recipes[0][1]
    print(f"{recipe.dataset}, {recipe.clients} clients by {recipe.partition}, {recipe.rounds} rounds; accuracy in %")
    print_results(tables.lines(tables.group(tables.read([out]))))
    print(f"runs:   {out}\nreport: {page.write([out], out / 'report.html')}")
