"""The commands calibrate, and statistics collect, merge and subtract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fedhead.cli.app import Argument, Option, command
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput

Checkpoint = Annotated[Path, Argument("Run folder, or file of weights (.safetensors, .pt).")]
Classifier = Annotated[str, Option("Name of the last linear layer.")]
Architecture = Annotated[
    str | None,
    Option(
        "Architecture of the weights: a built-in model such as 'mlp(hidden=[64])', or file.py:function "
        "that takes no arguments and returns the whole network."
    ),
]
Normalize = Annotated[str | None, Option("Normalization of images. [default: as in training, or half]")]


@command("Calibrate")
def calibrate(
    checkpoint: Checkpoint,
    out: Annotated[Path, Option("Output file of the calibrated weights, .safetensors.")],
    statistics: Annotated[
        list[Path] | None, Option("Statistics file of a site; repeat the option for each site.")
    ] = None,
    data: Annotated[Path | None, Option("Samples to compute the statistics from: an .npz file or a folder.")] = None,
    model: Architecture = None,
    classifier: Classifier = "fc",
    normalize: Normalize = None,
    stage: Annotated[str, Option("Stage: ccvr, or a head in closed form such as 'ridge(alpha=0.1)'.")] = "ccvr",
    seed: Annotated[int, AtLeast(0), Option("Seed of the virtual features of ccvr.")] = 0,
) -> None:
    """Compute a new classifier for a trained model from class statistics.

    The statistics are files of sites, or computed from --data. Given neither, they are computed from the run's own
    clients, whose data set is read from $FEDHEAD_DATA.

    Examples:
      fedhead calibrate runs/digits-fedavg-seed0 --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics a.safetensors --statistics b.safetensors --out new.safetensors
      fedhead calibrate runs/digits-fedavg-seed0 --data mine.npz --out calibrated.safetensors
      fedhead calibrate net.safetensors --statistics all.safetensors --stage ridge --out new.safetensors
    """
    from fedhead.api.calibrate_files import calibrate_file

    options: dict[str, Any] = {"model": model, "classifier": classifier, "normalize": normalize}
    total = calibrate_file(checkpoint, out, statistics or (), data, stage=stage, seed=seed, **options)
    print(f"calibrated the classifier by the statistics of {int(total.count.sum())} samples -> {out}")


SiteData = Annotated[Path, Argument("Samples of the site: an .npz file with x and y, or a folder.", label="DATA")]
Out = Annotated[Path, Option("Output file, .safetensors.")]


@command("Calibrate", "statistics collect")
def collect(
    checkpoint: Checkpoint,
    site: SiteData,
    out: Out,
    model: Architecture = None,
    classifier: Classifier = "fc",
    kind: Annotated[
        Literal["full", "diagonal", "low-rank", "pooled", "means"],
        Option(
            "Second moments: covariances, their diagonals, diagonals and --rank leading directions, one pooled "
            "matrix of all classes, or none."
        ),
    ] = "full",
    rank: Annotated[int, AtLeast(0), Option("Leading directions per class, with --kind low-rank.")] = 16,
    normalize: Normalize = None,
    min_class_count: Annotated[
        int,
        AtLeast(1),
        Option("Smallest number of samples of a class; smaller classes are left out, to protect single samples."),
    ] = 5,
) -> None:
    """Write the class statistics of a site's features.

    A server needs nothing else of the site to compute a classifier.

    Examples:
      fedhead statistics collect runs/digits-fedavg-seed0 site1.npz --out site1.safetensors
      fedhead statistics collect runs/digits-fedavg-seed0 site1.npz --out site1.safetensors --kind pooled
      fedhead statistics collect net.safetensors images/ --model mynets:resnet --classifier fc --out site1.safetensors
    """
    from fedhead.api.calibrate_files import collect_statistics

    options: dict[str, Any] = {"model": model, "classifier": classifier, "normalize": normalize, "kind": kind}
    collected, size, left_out = collect_statistics(
        checkpoint, site, out, rank=rank, min_class_count=min_class_count, **options
    )
    if left_out:
        print(f"left out: classes {', '.join(map(str, left_out))}, with fewer than {min_class_count} samples each")
    classes = int((collected.count > 0).sum())
    print(f"{int(collected.count.sum())} samples of {classes} classes, {size:,} bytes -> {out}")


@command("Calibrate", "statistics merge")
def merge(
    files: Annotated[list[Path], Argument("Statistics files of sites, or merged ones.", label="FILE")], out: Out
) -> None:
    """Add up the statistics of several sites, without counting a site twice.

    Example:
      fedhead statistics merge site1.safetensors site2.safetensors --out all.safetensors
    """
    from fedhead.api.calibrate_files import check_out
    from fedhead.calibration.files import merge_files, save_statistics

    check_out(out)
    merged = merge_files(files)
    save_statistics(out, merged)
    print(f"{int(merged.count.sum())} samples of {len(merged.members)} sites -> {out}")


@command("Calibrate", "statistics subtract")
def subtract(
    total: Annotated[Path, Argument("Merged statistics, written by `fedhead statistics merge`.")],
    files: Annotated[
        list[Path], Argument("Statistics files of the sites to remove, as they were merged.", label="FILE")
    ],
    out: Out,
) -> None:
    """Remove sites from merged statistics.

    Example:
      fedhead statistics subtract all.safetensors site2.safetensors --out rest.safetensors
    """
    from fedhead.api.calibrate_files import check_out
    from fedhead.calibration.files import load_statistics, save_statistics
    from fedhead.calibration.membership import remove

    check_out(out)
    rest = load_statistics(total)
    for file in files:
        try:
            rest = remove(rest, load_statistics(file))
        except BadInput as error:
            raise BadInput(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    save_statistics(out, rest)
    print(f"{int(rest.count.sum())} samples of {len(rest.members)} sites -> {out}")
