"""The command calibrate: a new classifier from class statistics, beside a federated run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedhead.cli.app import app
from fedhead.core.errors import BadInput

Checkpoint = Annotated[Path, typer.Argument(help="A run folder of fedhead, or weights (.safetensors, .pt).")]
Classifier = Annotated[str, typer.Option(help="The name of the weights' last linear layer.")]
Architecture = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The weights' architecture: a built-in name, or file.py:function that makes it.",
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
    samples: Annotated[int, typer.Option(min=1, help="Virtual features per class.")] = 2000,
    epochs: Annotated[int, typer.Option(min=0, help="Epochs of training on them.")] = 10,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Decides the virtual features.")] = 0,
) -> None:
    """Calibrate a model's classifier with virtual features (CCVR), by class statistics or by the data itself.

    Given only a run folder, the statistics come from the run's own clients (its data set is sought in $FEDHEAD_DATA).

    \b
    Examples:
      fedhead calibrate runs/digits-fedavg-seed0 --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics a.safetensors --statistics b.safetensors --out new.safetensors
      fedhead calibrate runs/digits-fedavg-seed0 --data mine.npz --out calibrated.safetensors
    """
    from safetensors.torch import save_file

    from fedhead.analyses.client_models import train_statistics
    from fedhead.api.calibrate import calibrate as calibrate_model
    from fedhead.api.calibrate import calibrate_weights
    from fedhead.api.checkpoint import model_and_data, run_model
    from fedhead.calibration.collect import statistics_of
    from fedhead.calibration.files import merge_files
    from fedhead.core.treefile import atomic
    from fedhead.experiment.first_weights import read_file
    from fedhead.experiment.reopen import reopen
    from fedhead.models.split_model import weights

    refuse_out(out)
    settings: dict[str, Any] = {"samples": samples, "epochs": epochs, "lr": lr, "seed": seed}
    run = checkpoint.is_dir()
    if statistics and data:
        raise BadInput("--statistics and --data: give the one or the other")
    if not statistics and not data and not run:
        raise BadInput("there is nothing to calibrate by: give --statistics (once per site) or --data")
    if statistics:
        merged = merge_files(statistics)
    elif data is not None:
        split, held, transform = model_and_data(checkpoint, data, model, classifier, normalize)
        merged = statistics_of(split, held.x, held.y, transform=transform)
    else:
        merged = train_statistics(reopen(checkpoint).simulation)
    if run:  # its architecture is known, so heads of any kind are calibrated as they are, or refused
        new = dict(weights(calibrate_model(run_model(checkpoint), merged, **settings)))
    else:
        new = calibrate_weights(read_file(checkpoint), classifier, merged, **settings)
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
