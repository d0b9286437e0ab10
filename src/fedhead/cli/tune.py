"""The command tune."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from fedhead.cli.app import Option, command
from fedhead.cli.options import AllowChangedCode, Assignments, Compile, DataFolder, Device, Precision, RecipeName
from fedhead.cli.output import resumable
from fedhead.core.components.ranges import AtLeast
from fedhead.metrics.records import Row

if TYPE_CHECKING:
    from fedhead.studies.tune.trials import TrialRecord

ENDED = ("complete", "pruned", "failed")


@command("Compare")
def tune(
    recipe: RecipeName,
    assignments: Assignments = None,
    out: Annotated[Path | None, Option("Output folder. [default: runs/tune-RECIPE]")] = None,
    trials: Annotated[int, Option("Number of trials of the study, in all processes together.")] = 20,
    objective: Annotated[
        str, Option("Objective on validation samples: accuracy, personal, loss, personal_loss or a metric.")
    ] = "accuracy",
    sampler: Annotated[
        Literal["tpe", "gp", "random"], Option("Sampler of values: TPE, a Gaussian process, or random.")
    ] = "tpe",
    pruner: Annotated[Literal["median", "halving", "none"], Option("Pruner that ends trials early.")] = "median",
    validation: Annotated[
        float | None, Option("Share of each client's training samples held out for validation. [default: 0.15]")
    ] = None,
    allow_changed_code: AllowChangedCode = False,
    minutes: Annotated[float | None, Option("Minutes after which no further trial is started.")] = None,
    final: Annotated[
        bool, Option("Train with the best values on all training samples afterwards, in OUT/final.")
    ] = False,
    plot: Annotated[bool, Option("Save figures of the study as PNG and PDF.")] = False,
    seed: Annotated[int, AtLeast(0), Option("Seed of the sampler.")] = 0,
    data_dir: DataFolder = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    quiet: Annotated[bool, Option("Print no line per trial.")] = False,
) -> None:
    """Search for the best values of recipe keys on validation samples.

    Test samples are never read. Give searched keys a range: log(low, high), uniform(low, high), int(low, high),
    choice(a, b, c). The same command resumes an interrupted study, or joins one that another process is running.

    Examples:
      fedhead tune digits 'lr=log(1e-3, 1)' 'momentum=choice(0, 0.9)' --trials 30 --final
      fedhead tune digits method=fedprox 'method.mu=log(1e-4, 1)' --objective f1 --sampler gp --out runs/mu
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
        result = search(
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
            allow_changed_code=allow_changed_code,
            compute=Compute(data_dir, device, "auto", precision, compile=compile),
            on_trial=tell,
        )
    lines = [("best", f"{objective} {result.value:.4f} on validation samples")]
    lines += [(key, _short(value)) for key, value in result.best.values.items()]
    lines += [("recipe", str(folder / "best.yaml")), ("trials", str(folder / "trials.csv"))]
    if result.final is not None:
        lines.append(("final", f"{_final_accuracies(result.final)} on test samples"))
    lines += [("figure", str(path)) for path in tuning_plots.save(folder)] if plot else []
    width = max(11, *(len(name) for name, _ in lines))
    print("\n".join(f"{name:<{width}} {text}" for name, text in lines))
    if failed := result.failed:  # only a warning, since the study has a result
        print(f"warning: {_failures(failed, sum(trial.state in ENDED for trial in result.trials))}", file=sys.stderr)


def _final_accuracies(final: Row) -> str:
    """Format the test accuracies after the last stage that has any."""
    rows = [final, *final["stages"].values()]
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in ("accuracy", "personal")}
    return ", ".join(f"{name} {known[-1]:.2f} %" for name, known in values.items() if known)


def _failures(failed: list[TrialRecord], ended: int) -> str:
    """Format the failed trials and the error of the first one in one line."""
    again = "; fix it, and the same command tries it again" if any(trial.retryable for trial in failed) else ""
    first = failed[0]
    why = f"trial {first.number} ({_chosen(first)}): {first.reason}"
    return f"{len(failed)} of {ended} trials failed; {why}{again}"


def _chosen(trial: TrialRecord) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
