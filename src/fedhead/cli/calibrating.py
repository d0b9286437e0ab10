"""Commands for calibration beside a federated run: statistics (at a site), calibrate (at the server)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhead.cli import app
from fedhead.core.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from fedhead.data.arrays import Samples
    from fedhead.data.augment import Transform
    from fedhead.data.federation import Federation
    from fedhead.models.split_model import SplitModel

Checkpoint = Annotated[Path, typer.Argument(help="A run folder of fedhead, or weights (.safetensors, .pt).")]
Classifier = Annotated[str, typer.Option(help="The name of the weights' last linear layer.")]
Architecture = Annotated[
    str | None,
    typer.Option("--model", help="The weights' architecture: a built-in name, or module:function that makes it."),
]
Normalize = Annotated[str | None, typer.Option(help="How images are normalized. [default: as in training, or half]")]
Site = Annotated[Path, typer.Argument(metavar="DATA", help="The site's samples: .npz with x and y, or a folder.")]


class Covariance(StrEnum):
    """What statistics hold of the covariances."""

    full = "full"
    diagonal = "diagonal"
    low_rank = "low-rank"


@app.command()
def statistics(
    checkpoint: Checkpoint,
    site: Site,
    out: Annotated[Path, typer.Option(help="The file to write, .safetensors.")],
    model: Architecture = None,
    classifier: Classifier = "fc",
    covariance: Annotated[
        Covariance, typer.Option(help="Whole covariances, their diagonals, or these and --rank leading directions.")
    ] = Covariance.full,
    rank: Annotated[int, typer.Option(min=0, help="Directions a class, with --covariance low-rank.")] = 16,
    normalize: Normalize = None,
) -> None:
    """Write the class statistics of a site's features: all that a server needs of it to calibrate the classifier.

    \b
    Examples:
      fedhead statistics runs/digits-fedavg-seed0 site1.npz --out site1.safetensors
      fedhead statistics runs/digits-fedavg-seed0 site1.npz --out site1.safetensors --covariance low-rank --rank 8
      fedhead statistics net.safetensors images/ --model mynets:resnet --classifier fc --out site1.safetensors
    """
    from fedhead.calibration.collect import statistics_of
    from fedhead.calibration.files import save_statistics

    _refuse_out(out)
    split, samples, transform = _model_and_data(checkpoint, site, model, classifier, normalize)
    found = statistics_of(split, samples.x, samples.y, transform=transform, diagonal=covariance is Covariance.diagonal)
    size = save_statistics(out, found, rank if covariance is Covariance.low_rank else None)
    print(f"{int(found.count.sum())} samples of {int((found.count > 0).sum())} classes, {size:,} bytes -> {out}")


@app.command()
def calibrate(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option(help="The file to write the calibrated weights to, .safetensors.")],
    statistics: Annotated[list[Path] | None, typer.Option(help="A site's file; give it once a site.")] = None,
    data: Annotated[Path | None, typer.Option(help="Samples (.npz or folder) whose statistics to take.")] = None,
    model: Architecture = None,
    classifier: Classifier = "fc",
    normalize: Normalize = None,
    samples: Annotated[int, typer.Option(min=1, help="Virtual features a class.")] = 2000,
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

    from fedhead.analysis.client_models import train_statistics
    from fedhead.api.calibrate import calibrate as calibrate_model
    from fedhead.api.calibrate import calibrate_weights
    from fedhead.calibration.collect import statistics_of
    from fedhead.calibration.files import merge_files
    from fedhead.core.treefile import atomic
    from fedhead.experiment.reopen import reopen
    from fedhead.models.split_model import weights

    _refuse_out(out)
    settings: dict[str, Any] = {"samples": samples, "epochs": epochs, "lr": lr, "seed": seed}
    run = checkpoint.is_dir()
    if statistics and data:
        raise BadInput("--statistics and --data: give the one or the other")
    if not statistics and not data and not run:
        raise BadInput("there is nothing to calibrate by: give --statistics (once a site) or --data")
    if statistics:
        merged = merge_files(statistics)
    elif data is not None:
        split, held, transform = _model_and_data(checkpoint, data, model, classifier, normalize)
        merged = statistics_of(split, held.x, held.y, transform=transform)
    else:
        merged = train_statistics(reopen(checkpoint).simulation)
    if run:  # its architecture is known, so heads of any kind are calibrated as they are, or refused
        new = dict(weights(calibrate_model(_run_model(checkpoint), merged, **settings)))
    else:
        new = calibrate_weights(_weights_file(checkpoint), classifier, merged, **settings)
    with atomic(out) as draft:
        save_file({n: t.contiguous() for n, t in new.items()}, draft)
    print(f"calibrated the classifier by the statistics of {int(merged.count.sum())} samples -> {out}")


# -- what the commands are given ----------------------------------------------------------------------
def _refuse_out(out: Path) -> None:
    """Refuse, before any work, a file that can't be written; its folder is made."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} can't be written to: {error.strerror}") from error
    if out.is_dir():
        raise BadInput(f"--out {out} is a folder: give the name of a file, such as {out / 'out.safetensors'}")


def _run_model(run: Path) -> SplitModel:
    """The global model of a run folder."""
    from fedhead.core.batch import PARTS
    from fedhead.experiment import build
    from fedhead.experiment.reopen import checkpoint_state
    from fedhead.experiment.run_folder import RunFolder
    from fedhead.models import load

    recipe = RunFolder.open(run).recipe
    method = build.method(recipe)
    if not set(PARTS) <= set(method.shared):
        raise BadInput(f"{run}: {method.name} leaves no global model to calibrate")
    model = build.validate(recipe)[0]
    load(model, checkpoint_state(run)[1]["server"]["model"].part(*PARTS))
    return model


def _weights_file(path: Path) -> dict[str, Tensor]:
    import pickle

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise BadInput(f"{path} is not there: give a run folder, or a file of weights")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)  # tensors only: nothing in it is run
    except pickle.UnpicklingError as error:  # whose own text advises to load it unsafely
        raise BadInput(f"{path} can't be read as weights: save model.state_dict() alone, or anew") from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"{path} can't be read as weights: {str(error).splitlines()[0]}") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(torch.is_tensor(t) for t in found.values()):
        raise BadInput(f"{path} holds no named weights: save model.state_dict()")
    return found


def _model_and_data(
    checkpoint: Path, site: Path, model: str | None, classifier: str, normalize: str | None
) -> tuple[SplitModel, Samples, Transform]:
    """A trained model, a site's samples, and how these are brought to its inputs."""
    from fedhead.data.augment import Transform

    if not site.exists():
        raise BadInput(f"{site} is not there: give an .npz file with x and y, or a folder of images")
    federation = _site(site)
    transform = federation.transform if normalize is None else Transform.named(normalize=normalize)
    if checkpoint.is_dir():
        from fedhead.data import datasets
        from fedhead.experiment.run_folder import RunFolder

        recipe = RunFolder.open(checkpoint).recipe
        split = _run_model(checkpoint)
        if normalize is None and recipe.dataset in datasets.DATASETS:
            transform = datasets.get(recipe.dataset).transform.replace(None, recipe.normalize)
    else:
        split = _architecture(model, classifier, _weights_file(checkpoint), federation)
    _refuse_inputs(split, federation, transform, site)
    return split, federation.train, transform


def _site(path: Path) -> Federation:
    """A site's samples, as a federation of one."""
    from fedhead.data import sources
    from fedhead.data.federation import Federation

    if path.is_file():
        return Federation.from_npz(path, clients=1)
    found = sources.folder(path, None)
    if found.sites:
        raise BadInput(f"{path} holds the folders of {len(found.parts)} sites: give the folder of one")
    return Federation.from_arrays(found.parts[0].x, found.parts[0].y, clients=1, names=found.names)


def _as_weights(w: dict[str, Tensor]) -> Any:
    from fedhead.core.tree import Tree

    return Tree(w)


def _architecture(model: str | None, classifier: str, w: dict[str, Tensor], federation: Federation) -> SplitModel:
    """The module of a built-in name or of module:function, with the weights of a file, in its parts."""
    import importlib
    import sys

    from fedhead.models import MODELS, build, load
    from fedhead.models.split_model import SplitModel
    from fedhead.models.wrap import split

    if model is None:
        raise BadInput("--model: which architecture do the weights belong to? A built-in name, or module:function")
    if ":" not in model:
        if model not in MODELS:
            raise BadInput(f"--model {model!r} is no built-in model; for one of yours write module:function")
        classes = next((t.shape[0] for n, t in w.items() if n == "classifier.weight"), federation.classes)
        made = build(model, federation.input_shape, classes)
        load(made, _as_weights({n: t for n, t in w.items() if t.is_floating_point()}))
        return made
    module, _, function = model.partition(":")
    sys.path.insert(0, "")
    try:
        net = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"--model {model}: {error}") from error
    finally:
        sys.path.remove("")
    try:
        net.load_state_dict(w)
    except RuntimeError as error:
        raise BadInput(f"the weights don't fit {model}: {' '.join(str(error).split())[:200]}") from error
    return net if isinstance(net, SplitModel) else split(net, classifier=classifier)


def _refuse_inputs(split: SplitModel, federation: Federation, transform: Transform, site: Path) -> None:
    import torch

    try:
        with torch.no_grad():
            split.eval()(transform(federation.train.x[:1]).to(next(split.parameters()).dtype))
    except (RuntimeError, ValueError, IndexError, BadInput) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{site}: the model can't take samples of shape {federation.input_shape} ({reason})") from error
