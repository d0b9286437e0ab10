"""Commands that compute: run, demo."""

from __future__ import annotations

import functools
import json
import shlex
import statistics
from collections.abc import Mapping
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
from fedhead.cli.output import interruptible, print_table
from fedhead.core.system.errors import BadInput
from fedhead.loggers.progress import progress

if TYPE_CHECKING:
    from fedhead.metrics.records import Row
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
    from fedhead.loggers.base import make as make_logger
    from fedhead.recipes.recipe import load
    from fedhead.runs.recorded_code import warn_of_changes
    from fedhead.runs.run import Compute
    from fedhead.runs.run import execute as simulate
    from fedhead.runs.run_folder_schema import CONFIG
    from fedhead.runs.seeds import execute_seeds, raise_failed, seed_folders, which

    if resume and out is None:
        raise BadInput("--resume needs --out: name the run folder that is to go on")
    found = load(recipe, assignments or [])
    if not resume:  # else the run itself compares, and refuses
        warn_of_changes(recipe, [found])
    loggers = tuple(make_logger(text, found.folders) for text in logger or [])
    settings = Compute(data, device, executor, precision.value, threads, loggers, allow_changed_code, compile.value)
    name = f"{Path(recipe).stem}-{found.method.rpartition(':')[2]}"
    out = out or _unused(Path("runs") / (name if found.seeds else f"{name}-seed{found.seed}"))
    over_flower = transport is TransportName.flower
    execute = simulate
    if over_flower:
        from fedhead.deploy.local_run import execute
    folders = seed_folders(found, out, data)
    finished, resumed = _done(folders) if resume else (0, [])
    complete = resume and all(_has_ended(path, one) for path, one in folders.items())
    last: Row = {}

    def stopped() -> str:
        # a checkpoint is written before its round is shown: an interrupt may come between
        done = max([last.get("round", 0), *_done(folders)[1]])
        at = f"after round {done} of {found.rounds}" if done else "before the first round"
        if not any((folder / CONFIG).exists() for folder in folders):
            return f"stopped {at}; nothing was written"
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
        return f"stopped {at}; go on with: {shlex.join([*words, '--resume'])}"

    rounds = found.rounds * len(folders)
    with interruptible(stopped), progress(rounds, quiet, finished, resumed) as tell:

        def on_row(one: Recipe, row: Row) -> None:
            last.update(row)
            tell(found.method if list(folders) == [out] else f"{found.method} (seed {which(one)})", row)

        result = execute_seeds(found, out, settings, execute, resume=resume, on_row=on_row)
    if as_json:
        print(json.dumps(result))
    else:
        _print_result(result, complete)
    raise_failed(result.get("diverged", {}), result.get("damaged", {}))


def _done(folders: Mapping[Path, Recipe]) -> tuple[int, list[int]]:
    """Return how many rounds runs have that train no more, and from which round each of the others goes on."""
    from fedhead.runs.run_folder import RunFolder
    from fedhead.runs.run_folder_schema import DamagedRun

    done, resumed = 0, list[int]()
    for path, recipe in folders.items():
        try:
            if _has_ended(path, recipe):
                done += recipe.rounds
            elif RunFolder.holds_run(path):
                resumed.append(RunFolder.open(path).checkpoint.round)
        except DamagedRun:  # which the run itself will name
            done += recipe.rounds
    return done, resumed


def _has_ended(path: Path, recipe: Recipe) -> bool:
    """Whether a folder holds the finished run of a recipe, so that there is nothing to go on with."""
    from fedhead.runs.run_folder import RunFolder
    from fedhead.runs.run_folder_schema import DamagedRun

    try:
        folder = RunFolder.open(path) if RunFolder.holds_run(path) else None
    except DamagedRun:  # which the run itself will name
        return False
    return folder is not None and folder.finished and folder.recipe == recipe


def _unused(path: Path) -> Path:
    """The path, or the first of path-2, path-3 … that is not there yet."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _print_result(result: Row, complete: bool) -> None:
    """Print what a run, or several, came to; `complete`: it was there before, and nothing was trained."""
    runs = result.get("runs", [result])
    left_out = all("left_out" in one for one in runs)
    width = max(11, *(len(one["left_out"]) for one in runs)) if left_out else 11
    asked = len(runs) + len(result.get("diverged", {})) + len(result.get("damaged", {}))
    count = str(asked) if asked == len(runs) else f"{len(runs)} of {asked}"
    what, plural = "client" if left_out else "seed", "" if asked == 1 else "s"
    many = f"  ({count} {what}{plural}{' left out in turn' if left_out else ''})" if "runs" in result else ""
    for one in runs if left_out else []:
        own = {"accuracy": one["accuracy"], **{name: stage["accuracy"] for name, stage in one["stages"].items()}}
        shown = [f"{name} {_percent([value])}" for name, value in own.items() if value is not None]
        print(f"{one['left_out']:<{width}} {', '.join(shown)}")
    print(f"accuracy    {_percent([r['accuracy'] for r in runs])}{many}")
    if result["personal"] is not None:
        print(f"personal    {_percent([r['personal'] for r in runs])}{many}")
    for name, value in result.get("metrics", {}).items():
        why = result.get("notes", {}).get(name, "no value")
        text = f"– ({why})" if value is None else _mean_std([r["metrics"][name] for r in runs], 4)
        print(f"{name:<11} {text}")
    for name in result["stages"]:
        found = [(word, [r["stages"][name][word] for r in runs]) for word in ("accuracy", "personal")]
        shown = [f"{word} {_percent(values)}" for word, values in found if values != [None] * len(runs)]
        print(f"  + {name}: {', '.join(shown)}")
    print(f"traffic     {_traffic(result, runs)}")
    if each := result.get("client_bytes"):
        print(f"            per client and round {_bytes(each['up'])} up, {_bytes(each['down'])} down")
    prepared = result.get("preparing") or 0.0
    print(f"time        {result['seconds']:.1f} s" + (f", after {prepared:.1f} s of compiling" if prepared else ""))
    if started := {r.get("compiled_from") for r in runs} - {None}:
        print(f"compiled    from round {' and '.join(map(str, sorted(started)))} on")
    print(f"run         {result['run']}{' (was finished already, nothing was trained)' if complete else ''}")


def _traffic(result: Row, runs: list[Row]) -> str:
    """What was sent in all, of the rounds and of the stages apart: a stage may send more than all rounds."""
    of_stages = [sum(one[f"bytes_{way}"] for r in runs for one in r["stages"].values()) for way in ("up", "down")]
    of_rounds = [result[f"bytes_{way}"] - sent for way, sent in zip(("up", "down"), of_stages, strict=True)]
    texts = [f"{_bytes(up)} up, {_bytes(down)} down" for up, down in (of_rounds, of_stages)]
    return f"{texts[0]} in rounds; {texts[1]} in stages" if any(of_stages) else texts[0]


def _bytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _percent(values: list[float | None]) -> str:
    """The value of a run in per cent; of several, their mean and deviation."""
    shown = _mean_std(values, 2)
    return shown if shown == "–" else f"{shown} %"


def _mean_std(values: list[float | None], decimals: int) -> str:
    there = [v for v in values if v is not None]
    if not there:
        return "–"
    spread = f" ± {statistics.stdev(there):.{decimals}f}" if len(there) > 1 else ""
    return f"{statistics.fmean(there):.{decimals}f}{spread}"


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
    from fedhead.runs.run import Compute, execute

    out = out or _unused(Path("runs") / "demo")
    shorter = [] if rounds is None else [f"rounds={rounds}"]  # one-round has its own, which comes after and counts
    recipes = [
        (name, load("digits", [*shorter, *assignments, f"seed={seed}"]))
        for name, assignments in DEMO.items()
        for seed in range(seeds)
    ]
    with progress(sum(recipe.rounds for _, recipe in recipes), quiet) as on_row:
        for name, recipe in recipes:
            folder, label = out / f"{name}-seed{recipe.seed}", f"{name} (seed {recipe.seed})"
            execute(recipe, folder, Compute(), on_row=functools.partial(on_row, label))
    recipe = recipes[0][1]
    print(f"{recipe.dataset}, {recipe.clients} clients by {recipe.partition}, {recipe.rounds} rounds; accuracy in %")
    body = []
    for name in DEMO:  # each by itself, so that no label lists the settings in which they differ
        runs = read_runs.load_runs([out / f"{name}-seed{seed}" for seed in range(seeds)])
        for stage in ("", *runs[0].recipe.stages):
            values = [m.values["accuracy"] for m in of_runs(runs) if m.stage == stage]
            body.append([f"{runs[0].recipe.method} + {stage}" if stage else runs[0].recipe.method, mean_std(values)])
    body[-2:] = [["one round: ridge", body[-1][1]]]
    print_table(Table("", ["method", "accuracy"], body))
    print(f"runs:   {out}\nreport: {page.write([out], out / 'report.html')}")
