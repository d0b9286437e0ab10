"""The command tune."""

from __future__ import annotations

import sys
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
    RecipeName,
)
from fedhead.cli.output import resumable

if TYPE_CHECKING:
    from fedhead.studies.tune.trials import TrialRecord

MOST_NAMED = 10  # failed trials in one line
ENDED = ("complete", "pruned", "failed")


@app.command()
def tune(
    recipe: RecipeName,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder. [default: runs/tune-RECIPE]")] = None,
    trials: Annotated[int, typer.Option(help="How many trials the study is to have, of all processes together.")] = 20,
    objective: Annotated[
        str, typer.Option(help="accuracy, personal, loss, personal_loss or a metric, on validation samples.")
    ] = "accuracy",
    sampler: Annotated[
        Literal["tpe", "gp", "random"], typer.Option(help="TPE, a Gaussian process, or random values.")
    ] = "tpe",
    pruner: Annotated[Literal["median", "halving", "none"], typer.Option(help="Which trials end early.")] = "median",
    validation: Annotated[
        float | None, typer.Option(help="Share of each client's training samples to test on. [default: 0.15]")
    ] = None,
    allow_changed_code: AllowChangedCode = False,
    minutes: Annotated[float | None, typer.Option(help="Begin no trial after so many minutes.")] = None,
    final: Annotated[
        bool, typer.Option("--final", help="Then train the best setting on all training samples, in OUT/final.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Save figures of the study as PNG and PDF.")] = False,
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

    Give searched keys a range: log(low, high), uniform(low, high), int(low, high), choice(a, b, c). The same command
    resumes an interrupted study, or joins one that another process is running.

    \b
    Examples:
      fedhead tune digits 'lr=log(1e-3, 1)' 'momentum=choice(0, 0.9)' --trials 30 --final
      fedhead tune digits method=fedprox 'method.mu=log(1e-4, 1)' --objective f1 --sampler gp --out runs/mu
      fedhead tune digits 'lr=log(1e-3, 1)' --engine ray --gpus-per-worker 0.5
    """
    from fedhead.engine.experiment.compute import Compute
    from fedhead.report.figures import tuning_plots
    from fedhead.studies.tune.tune import tune as search

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
            sampler=sampler,
            pruner=pruner,
            validation=validation,
            minutes=minutes,
            final=final,
            seed=seed,
            engine=engine,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            allow_changed_code=allow_changed_code,
            compute=Compute(data, device, "auto", precision, compile=compile),
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
