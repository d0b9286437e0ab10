"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import DataFolder
from fedhead.core.components.ranges import AtLeast


@command("Deploy")
def export(
    run: Annotated[Path, Argument("Run folder.")],
    out: Annotated[Path, Option("Output file: .onnx, .pt2 or .safetensors.")],
    stage: Annotated[
        str | None, Option("Stage after which the model is taken. [default: after the last round]")
    ] = None,
    client: Annotated[
        int | None, AtLeast(0), Option("Client whose personal model is taken. [default: the global model]")
    ] = None,
    normalize: Annotated[
        bool, Option("Include the preprocessing: the model takes images as bytes, table rows with NaN.")
    ] = False,
    data_dir: DataFolder = None,
) -> None:
    """Export the trained model of a run to a file for other programs.

    The file is checked against the run's own predictions.

    Examples:
      fedhead export runs/digits-fedavg-seed0 --out model.onnx --normalize
      fedhead export runs/digits-fedavg-seed0 --out client3.pt2 --client 3 --stage finetune
      fedhead export runs/digits-fedavg-seed0 --out model.safetensors
    """
    from fedhead.api.load import load

    loaded = load(run, data_dir=data_dir, device="cpu")
    written = loaded.export(out, normalize=normalize, client=client, stage=stage)
    after = f"after stage {stage}" if stage else "after the last round"
    others = [name for name in loaded.stages if name != stage]
    print(f"wrote {written}, the model {after}" + (f" (other models: --stage {', '.join(others)})" if others else ""))
    if not normalize:
        instead = "" if out.suffix == ".safetensors" else "; with --normalize the file computes it itself"
        print(f"its inputs must be normalized as in training (fedhead.load({str(run)!r}).transform(x)){instead}")
