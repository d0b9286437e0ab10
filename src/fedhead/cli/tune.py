"""The command that searches for the settings of a recipe: tune."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedhead.cli.app import app
from fedhead.cli.options import (
    AllowChangedCode,
    Assignments,
    Compile,
    DataFolder,
    Device,
    Precision,
)
from fedhead.cli.output import resumable
from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from fedhead.studies.tune.trials import TrialRecord

MOST_NAMED = 10  # failed trials in one line
ENDED = ("complete", "pruned", "failed")


class Sampler(StrEnum):
    """Samplers of values."""

    tpe = "tpe"
    gp = "gp"
    random = "random"


class Pruner(StrEnum):
    """Pruners of trials."""

    median = "median"
    halving = "halving"
    none = "none"


class Direction(StrEnum):
    """Directions of an objective."""

    maximize = "maximize"
    minimize = "minimize"


@app.command()
def tune(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A built-in recipe's name, or a YAML file.")
    ] = None,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder. [default: runs/tune-RECIPE]")] = None,
    trials: Annotated[int, typer.Option(help="How many trials the study is to have, of all processes together.")] = 20,
    objective: Annotated[
        str, typer.Option(help="accuracy, personal, loss, personal_loss or a metric, on validation samples.")
    ] = "accuracy",
    direction: Annotated[Direction | None, typer.Option(help="[default: as the objective says]")] = None,
    sampler: Annotated[Sampler, typer.Option(help="TPE, a Gaussian process, or random values.")] = Sampler.tpe,
    pruner: Annotated[Pruner, typer.Option(help="Which trials end early.")] = Pruner.median,
    validation: Annotated[
        float | None, typer.Option(help="Share of each client's training samples to test on. [default: 0.15]")
    ] = None,
    allow_changed_code: AllowChangedCode = False,
    minutes: Annotated[float | None, typer.Option(help="Begin no trial after so many minutes.")] = None,
    stop_on_error: Annotated[
        bool, typer.Option("--stop-on-error", help="End the search at a trial's first error. [default: go on]")
    ] = False,
    final: Annotated[
        bool, typer.Option("--final", help="Then train the best setting on all training samples, in OUT/final.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Save figures of the study as PNG and PDF.")] = False,
    show: Annotated[
        Path | None, typer.Option("--show", help="Draw the figures of a study's folder; search no more.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="This process, or the machines of a Ray cluster.")
    ] = "local",
    cpus_per_worker: Annotated[float, typer.Option(min=0, help="With Ray: the CPUs of a trial.")] = 1,
    gpus_per_worker: Annotated[float, typer.Option(min=0, help="With Ray: the GPUs, or the share of one.")] = 0,
    data: DataFolder = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line per trial.")] = False,
) -> None:
    """Search for the settings of a recipe that are best on validation samples; test samples are never read.

    A range makes a key searched: log(low, high), uniform(low, high), int(low, high), choice(a, b, c). The same command
    goes on with a study that was stopped, and joins one that another process works on.

    \b
    Examples:
      fedhead tune digits 'lr=log(1e-3, 1)' 'momentum=choice(0, 0.9)' --trials 30 --final
      fedhead tune digits method=fedprox 'method.mu=log(1e-4, 1)' --objective f1 --sampler gp --out runs/mu
      fedhead tune digits 'lr=log(1e-3, 1)' --engine ray --gpus-per-worker 0.5
      fedhead tune --show runs/mu
    """
    from fedhead.engine.experiment.compute import Compute
    from fedhead.report.figures import tuning_plots
    from fedhead.studies.tune.tune import tune as search

    if show is not None:
        if recipe is not None:
            raise BadInput("--show draws a study that is there: leave out the recipe and the ranges")
        for path in tuning_plots.save(show):
            print(path)
        return
    if recipe is None:
        raise BadInput("tune needs a recipe, as in fedhead tune digits 'lr=log(1e-3, 1)' (or --show FOLDER)")
    folder = out or Path("runs") / f"tune-{Path(recipe).stem}"

    def tell(trial: TrialRecord) -> None:
        if not quiet:
            chosen = _chosen(trial)
            value = "–" if trial.value is None else f"{trial.value:.4f}"
            why = f"  {trial.reason}" if trial.state == "failed" else ""
            print(f"trial {trial.number:<4} {trial.state:<9} {value:>9}  {chosen}{why}", file=sys.stderr)

    with resumable():
        found = search(
            recipe,
            *(assignments or []),
            out=folder,
            trials=trials,
            objective=objective,
            direction=None if direction is None else direction.value,
            sampler=sampler.value,
            pruner=pruner.value,
            validation=validation,
            minutes=minutes,
            stop_on_error=stop_on_error,
            final=final,
            seed=seed,
            engine=engine,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            allow_changed_code=allow_changed_code,
            settings=Compute(data, device, "auto", precision, compile=compile),
            on_trial=tell,
        )
    lines = [("best", f"{objective} {found.value:.4f} on validation samples")]
    lines += [(key, _short(value)) for key, value in found.best.values.items()]
    lines += [("recipe", str(folder / "best.yaml")), ("trials", str(folder / "trials.csv"))]
    if found.final is not None:
        accuracies = {name: found.final[name] for name in ("accuracy", "personal") if found.final[name] is not None}
        lines.append(("final", ", ".join(f"{name} {value:.2f} %" for name, value in accuracies.items())))
    lines += [("figure", str(path)) for path in tuning_plots.save(folder)] if plot else []
    width = max(11, *(len(name) for name, _ in lines))
    print("\n".join(f"{name:<{width}} {text}" for name, text in lines))
    if failed := found.failed:  # no error of the command: the study has a result
        print(f"warning: {_failures(failed, sum(one.state in ENDED for one in found.trials))}", file=sys.stderr)


def _failures(failed: list[TrialRecord], ended: int) -> str:
    """Name the trials that failed, in one line, with the error of the first."""
    numbers = [str(one.number) for one in failed[:MOST_NAMED]] + ["…"] * (len(failed) > MOST_NAMED)
    again = "; fix it, and the same command tries it again" if any(one.retryable for one in failed) else ""
    first = failed[0]
    why = f"trial {first.number} ({_chosen(first)}): {first.reason}"
    return f"{len(failed)} of {ended} trials failed ({', '.join(numbers)}); {why}{again}"


def _chosen(trial: TrialRecord) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
