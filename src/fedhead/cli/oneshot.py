"""The command oneshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import DataFolder, Device, Precision, words
from fedhead.cli.output import print_table
from fedhead.core.components.ranges import AtLeast


@command("Calibrate")
def oneshot(
    source: Annotated[str, Argument("Name of a data set, .npz file, or folder.", label="DATA")],
    backbone: Annotated[str, Option("Model that computes the features.")] = "efficientnet_lite0",
    heads: Annotated[
        str, Option("Heads: all, or comma-separated names among ncm, ridge, lda, qda and fedcof.")
    ] = "all",
    partition: Annotated[str | None, Option("Partition, such as dirichlet(0.1). [default: the data's own]")] = None,
    clients: Annotated[int | None, AtLeast(1), Option("Number of clients. [default: the data's, or 10]")] = None,
    seed: Annotated[int, AtLeast(0), Option("Seed of the split.")] = 0,
    resize: Annotated[
        int | None, AtLeast(1), Option("Side of the images in pixels. [default: as in the pretraining]")
    ] = None,
    normalize: Annotated[
        str | None, Option("Normalization: standard, or a name. [default: as in the pretraining]")
    ] = None,
    missing: Annotated[
        Literal["refuse", "mean"],
        Option("Handling of NaN in a table: refuse, or fill in the mean and add an indicator column."),
    ] = "refuse",
    rounds: Annotated[int, AtLeast(0), Option("Rounds of FedAvg and CCVR on the features, for comparison.")] = 0,
    dp: Annotated[
        str | None,
        Option("Differential privacy of each head: ε, or parameters such as 'epsilon=1, delta=1e-6'.", label="EPS"),
    ] = None,
    secure_sum: Annotated[bool, Option("Show the server only sums over clients.")] = False,
    plot: Annotated[Path | None, Option("Output file of a plot of accuracy against bytes: .png, .svg or .pdf.")] = None,
    cache: Annotated[Path | None, Option("Folder in which features are cached.")] = None,
    data_dir: DataFolder = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Annotated[bool, Option("Print the result as JSON.", flag="--json")] = False,
    quiet: Annotated[bool, Option("Show no progress.")] = False,
) -> None:
    """Compute classifiers on a pretrained model from one message per client.

    The accuracy on pooled data is shown as an upper bound.

    Examples:
      fedhead oneshot cifar10 --partition 'dirichlet(0.05)' --clients 100 --device cuda --precision bf16
      fedhead oneshot photos/ --heads ridge,lda --plot heads.png
      fedhead oneshot digits --resize 64 --rounds 10
      fedhead oneshot cifar10 --clients 100 --heads ridge --secure-sum --dp 'epsilon=1, delta=1e-6, center=private'
      fedhead oneshot hospitals.npz --backbone 'mlp(hidden=[512])' --missing mean --normalize standard
    """
    from fedhead.api.oneshot import oneshot as compute

    result = compute(
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
        privacy=[] if dp is None else [f"dp({dp})"],
        uploads=["secure_sum"] if secure_sum else [],
        device=device,
        precision=precision,
        data_dir=data_dir,
        cache=cache,
        progress=not quiet,
    )
    if plot is not None:
        result.plot(plot)
    if as_json:
        print(json.dumps({"title": result.title, "feature_seconds": result.feature_seconds, "heads": result.rows}))
        return
    print_table(result.table())
    for guarantee in result.guarantees:
        print(f"privacy of {guarantee}")
    if len(result.guarantees) > 1:
        print("each head spends the whole ε: publish one")
    print(f"features took {result.feature_seconds:.1f} s")
