"""The commands calibrate, and statistics collect, merge and subtract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedhead.cli.app import app
from fedhead.core.system.errors import BadInput

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
    stage: Annotated[str, typer.Option(help="ccvr, or a head in closed form, such as 'ridge(alpha=0.1)'.")] = "ccvr",
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

    options: dict[str, Any] = {"model": model, "classifier": classifier, "normalize": normalize}
    total = calibrate_file(checkpoint, out, statistics or (), data, stage=stage, seed=seed, **options)
    print(f"calibrated the classifier by the statistics of {int(total.count.sum())} samples -> {out}")


statistics = typer.Typer(
    name="statistics",
    help="Class statistics of a site's features: collect them, merge those of sites, subtract a site.",
    rich_markup_mode=None,
)
app.add_typer(statistics)

SiteData = Annotated[Path, typer.Argument(metavar="DATA", help="The site's samples: .npz with x and y, or a folder.")]
Out = Annotated[Path, typer.Option(help="The file to write, .safetensors.")]


@statistics.command()
def collect(
    checkpoint: Checkpoint,
    site: SiteData,
    out: Out,
    model: Architecture = None,
    classifier: Classifier = "fc",
    kind: Annotated[
        Literal["full", "diagonal", "low-rank", "pooled", "means"],
        typer.Option(
            help="Whole covariances, their diagonals, these and --rank leading directions, one matrix for all classes, "
            "or no second moments."
        ),
    ] = "full",
    rank: Annotated[int, typer.Option(min=0, help="Directions per class, with --kind low-rank.")] = 16,
    normalize: Normalize = None,
    min_class_count: Annotated[
        int, typer.Option(min=1, help="Leave out classes with fewer samples: the sum over one sample is that sample.")
    ] = 5,
) -> None:
    """Write the class statistics of a site's features: all that a server needs of it to compute a classifier.

    \b
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


@statistics.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Files of sites, or of sites that were merged before.")],
    out: Out,
) -> None:
    """Add up the statistics of several sites; nobody is added twice.

    \b
    Example:
      fedhead statistics merge site1.safetensors site2.safetensors --out all.safetensors
    """
    from fedhead.api.calibrate_files import check_out
    from fedhead.calibration.files import merge_files, save_statistics

    check_out(out)
    merged = merge_files(files)
    save_statistics(out, merged)
    print(f"{int(merged.count.sum())} samples of {len(merged.members)} sites -> {out}")


@statistics.command()
def subtract(
    total: Annotated[Path, typer.Argument(help="A file that `merge` wrote.")],
    files: Annotated[list[Path], typer.Argument(help="The files of the sites that leave, as they were merged.")],
    out: Out,
) -> None:
    """Take sites out of merged statistics, as if they had never been in.

    \b
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
