"""The command oneshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhead.cli.app import app
from fedhead.cli.options import DataFolder, Device, Precision, words
from fedhead.cli.output import print_table


@app.command()
def oneshot(
    source: Annotated[str, typer.Argument(metavar="DATA", help="A data set's name, an .npz file, or a folder.")],
    backbone: Annotated[str, typer.Option(help="The model that computes features.")] = "efficientnet_lite0",
    heads: Annotated[str, typer.Option(help="all, or names with commas: ncm,ridge,lda,qda,fedcof.")] = "all",
    partition: Annotated[str | None, typer.Option(help="Such as dirichlet(0.1). [default: the data's own]")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients. [default: the data's, or 10]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 0,
    resize: Annotated[int | None, typer.Option(min=1, help="Pixels. [default: as in the pretraining]")] = None,
    normalize: Annotated[str | None, typer.Option(help="standard, or a name. [default: as in the pretraining]")] = None,
    missing: Annotated[
        Literal["refuse", "mean"], typer.Option(help="NaN in a table; mean: filled in, with an indicator column.")
    ] = "refuse",
    rounds: Annotated[int, typer.Option(min=0, help="Also FedAvg and CCVR on the features, over so many rounds.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy against bytes: .png, .svg or .pdf.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep features in this folder.")] = None,
    data: DataFolder = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Compute heads on features of a pretrained model from one message per client, beside the pooled-data bound.

    \b
    Examples:
      fedhead oneshot cifar10 --partition 'dirichlet(0.05)' --clients 100 --device cuda --precision bf16
      fedhead oneshot photos/ --heads ridge,lda --plot heads.png
      fedhead oneshot digits --resize 64 --rounds 10
      fedhead oneshot hospitals.npz --backbone 'mlp(hidden=[512])' --missing mean --normalize standard
    """
    from fedhead.api.oneshot import oneshot as compute

    found = compute(
        source,
        backbone,
        heads if heads == "all" else words(heads),
        partition=partition,
        clients=clients,
        seed=seed,
        resize=resize,
        normalize=normalize,
        missing=missing,
        rounds=rounds,
        device=device,
        precision=precision,
        data_dir=data,
        cache=cache,
        progress=not quiet,
    )
    if plot is not None:
        found.plot(plot)
    if as_json:
        print(json.dumps({"title": found.title, "feature_seconds": found.feature_seconds, "heads": found.rows}))
        return
    print_table(found.table())
    print(f"features took {found.feature_seconds:.1f} s")
