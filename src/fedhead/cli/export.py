"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.options import DataFolder


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The file to write: .onnx, .pt2 or .safetensors.")],
    stage: Annotated[str | None, typer.Option(help="After which stage. [default: after the last round]")] = None,
    client: Annotated[int | None, typer.Option(min=0, help="A client's own model. [default: the global one]")] = None,
    normalize: Annotated[
        bool,
        typer.Option("--normalize", help="Let the file normalize its inputs itself: it takes images as bytes then."),
    ] = False,
    data: DataFolder = None,
) -> None:
    """Write the trained model of a run to a file for other programs, checked against the run's own predictions.

    \b
    Examples:
      fedhead export runs/digits-fedavg-seed0 --out model.onnx --normalize
      fedhead export runs/digits-fedavg-seed0 --out client3.pt2 --client 3 --stage finetune
      fedhead export runs/digits-fedavg-seed0 --out model.safetensors
    """
    from fedhead.api.load import load

    loaded = load(run, data=data, device="cpu")
    written = loaded.export(out, normalize=normalize, client=client, stage=stage)
    print(f"wrote {written}")
    if not normalize:
        instead = "" if out.suffix == ".safetensors" else "; with --normalize the file computes it itself"
        print(f"its inputs must be normalized as in training (fedhead.load({str(run)!r}).transform){instead}")
