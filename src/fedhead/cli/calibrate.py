"""The command calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedhead.cli.app import app
from fedhead.cli.options import once

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
    seed: Annotated[int, typer.Option(min=0, help="ccvr: decides the virtual features.")] = 0,
) -> None:
    """Compute a new classifier for a model, by class statistics or by the data itself.

    Given only a run folder, the statistics come from the run's own clients (its data set is sought in $FEDHEAD_DATA).

    \b
    Examples:
      fedhead calibrate runs/digits-fedavg-seed0 --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics a.safetensors --statistics b.safetensors --out new.safetensors
      fedhead calibrate runs/digits-fedavg-seed0 --data mine.npz --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics all.safetensors --stage ridge --out new.safetensors
    """
    from fedhead.api.calibrate_files import calibrate_file
    from fedhead.recipes.recipe import assignment

    parameters: dict[str, Any] = dict(assignment(text) for text in parameter or ())
    options: dict[str, Any] = {"model": model, "classifier": classifier, "normalize": normalize}
    total = calibrate_file(checkpoint, out, statistics or (), data, stage=stage, seed=seed, **options, **parameters)
    print(f"calibrated the classifier by the statistics of {int(total.count.sum())} samples -> {out}")
