"""The command calibrate: a new classifier from class statistics, beside a federated run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedhead.cli.app import app
from fedhead.cli.options import once
from fedhead.core.system.errors import BadInput
from fedhead.core.system.special_files import refuse_special

Checkpoint = Annotated[Path, typer.Argument(help="A run folder of fedhead, or weights (.safetensors, .pt).")]
Classifier = Annotated[str, typer.Option(help="The name of the weights' last linear layer.")]
Architecture = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The weights' architecture: a built-in model, such as 'mlp(hidden=[64])', or file.py:function "
        "(no arguments) that returns the whole net.",
    ),
]
Normalize = Annotated[str | None, typer.Option(help="How images are normalized. [default: as in training, or half]")]


@app.command()
def calibrate(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option(help="The file to write the calibrated weights to, .safetensors.")],
    statistics: Annotated[list[Path] | None, typer.Option(help="A site's file; once per site.")] = None,
    data: Annotated[Path | None, typer.Option(help="Samples (.npz or folder) whose statistics to take.")] = None,
    model: Architecture = None,
    classifier: Classifier = "fc",
    normalize: Normalize = None,
    stage: Annotated[str, typer.Option(help="ccvr, or a head in closed form: ridge, lda, qda, ncm, fedcof.")] = "ccvr",
    parameter: Annotated[
        list[str] | None, typer.Option(help="key=value of the stage, such as alpha=0.1.", callback=once)
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="ccvr: features drawn per class. [default: 2000]")] = None,
    epochs: Annotated[int | None, typer.Option(min=0, help="ccvr: epochs on them. [default: 10]")] = None,
    lr: Annotated[float | None, typer.Option(help="ccvr: learning rate. [default: 0.001]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="ccvr: decides the virtual features.")] = 0,
) -> None:
    """Compute a model's classifier anew, by class statistics or by the data itself.

    Given only a run folder, the statistics come from the run's own clients (its data set is sought in $FEDHEAD_DATA).

    \b
    Examples:
      fedhead calibrate runs/digits-fedavg-seed0 --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics a.safetensors --statistics b.safetensors --out new.safetensors
      fedhead calibrate runs/digits-fedavg-seed0 --data mine.npz --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics all.safetensors --stage ridge --out new.safetensors
    """
    from safetensors.torch import save_file

    from fedhead.api.calibrate import calibrate as calibrate_model
    from fedhead.api.calibrate import calibrate_weights
    from fedhead.api.checkpoint import model_and_data, run_model
    from fedhead.calibration.collect import statistics_of
    from fedhead.calibration.files import load_statistics, merge_files
    from fedhead.core.system.atomic_file import atomic
    from fedhead.models.split_model import weights
    from fedhead.papers.analyses.client_models import train_statistics
    from fedhead.recipes.initial_weights import read_file
    from fedhead.recipes.recipe import assignment
    from fedhead.runs.reopen import reopen

    refuse_out(out)
    given = {"samples": samples, "epochs": epochs, "lr": lr}
    settings: dict[str, Any] = {word: value for word, value in given.items() if value is not None}
    for word, value in (assignment(text) for text in parameter or ()):
        if word in settings:
            raise BadInput(f"--parameter {word}={value}: --{word} gives it as well; give one of them")
        settings[word] = value
    run = checkpoint.is_dir()
    if statistics and data:
        raise BadInput("--statistics and --data: give the one or the other")
    if not statistics and not data and not run:
        raise BadInput("there is nothing to calibrate by: give --statistics (once per site) or --data")
    parts: Any = None  # of each site
    if statistics:
        merged = merge_files(statistics)
        parts = [load_statistics(path) for path in statistics] if stage == "fedcof" else None
    elif data is not None:
        split, held, transform = model_and_data(checkpoint, data, model, classifier, normalize)
        merged = statistics_of(split, held.x, held.y, transform=transform)
    else:
        merged = train_statistics(reopen(checkpoint).simulation)
    if run:  # its architecture is known, so heads of any kind are calibrated as they are, or refused
        new = dict(weights(calibrate_model(run_model(checkpoint), parts or merged, stage, seed=seed, **settings)))
    else:
        new = calibrate_weights(read_file(checkpoint), classifier, parts or merged, stage, seed=seed, **settings)
    with atomic(out) as draft:
        save_file({n: t.contiguous() for n, t in new.items()}, draft)
    print(f"calibrated the classifier by the statistics of {int(merged.count.sum())} samples -> {out}")


def refuse_out(out: Path) -> None:
    """Refuse, before any work, a file that can't be written; its folder is made."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} can't be written to: {error.strerror}") from error
    if out.is_dir():
        raise BadInput(f"--out {out} is a folder: give the name of a file, such as {out / 'out.safetensors'}")
    if out.exists():
        refuse_special(out)
