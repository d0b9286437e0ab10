"""Calibration from files: trained models, sites' samples and class statistics on disk."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedhead.api.calibrate import calibrate, calibrate_weights
from fedhead.api.load import load as load_result
from fedhead.api.trained import TrainedState
from fedhead.calibration.collect import statistics_of
from fedhead.calibration.files import load_statistics, merge_files, save_statistics
from fedhead.calibration.statistics import Statistics
from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.loading import load_object
from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.training.batch import PARTS
from fedhead.core.tree.inputs import shape_of
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import labels
from fedhead.data.inputs.arrays import Samples, stored_layout
from fedhead.data.inputs.conversion import samples
from fedhead.data.inputs.labels import Classes
from fedhead.data.sources import sample_file
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, check_kind
from fedhead.models import MODELS, load
from fedhead.models import build as build_model
from fedhead.models.split_model import SplitModel, weights
from fedhead.models.wrap import split
from fedhead.papers.analyses.client_models import train_statistics
from fedhead.recipes.initial_weights import read_file
from fedhead.runs.reopen import reopen
from fedhead.studies.writable import check_writable


def calibrate_file(
    checkpoint: Path,
    out: Path,
    statistics: Sequence[Path] = (),
    data: Path | None = None,
    *,
    model: str | None = None,
    classifier: str = "fc",
    normalize: str | None = None,
    stage: str = "ccvr",
    seed: int = 0,
) -> Statistics:
    """Recompute the classifier of a trained model on disk and write its weights.

    Args:
        checkpoint: Run folder, or file of weights.
        out: Output file, .safetensors.
        statistics: Files of class statistics, one per site.
        data: Samples whose statistics are used instead of files. With neither, the run's clients provide them.
        model: Architecture of a file of weights; see `load_model_and_data`.
        classifier: Name of the last linear layer of such a model.
        normalize: Normalization of images; None: that of the run.
        stage: Stage that computes the classifier: ccvr, or a closed-form head such as `ridge(alpha=0.1)`.
        seed: Seed of CCVR's virtual features.

    Returns:
        The statistics in use.

    Raises:
        BadInput: If there are no statistics, or an argument is incompatible.
    """
    check_out(out)
    require(checkpoint.exists(), f"{checkpoint} is not there: give a run folder, or a file of weights")
    is_run = checkpoint.is_dir()
    require(
        (statistics or data or is_run) and not (statistics and data),
        "there must be one thing to calibrate by: give --statistics (once per site) or --data",
    )
    sites: list[Statistics] = []  # fedcof needs them separately
    if statistics:
        total = merge_files(statistics)
        sites = [load_statistics(path) for path in statistics] if read_call(stage, "stage").name == "fedcof" else []
    elif data is not None:
        trained, site_data, transform = load_model_and_data(checkpoint, data, model, classifier, normalize)
        total = statistics_of(trained, site_data.x, site_data.y, transform=transform)
    else:
        total = train_statistics(reopen(checkpoint).simulation)
    if is_run:  # its architecture is known, so any kind of head is handled
        global_model = _run_model(checkpoint, load_result(checkpoint, device="cpu").trained)
        new = dict(weights(calibrate(global_model, sites or total, stage, seed=seed)))
    else:
        new = calibrate_weights(read_file(checkpoint), classifier, sites or total, stage, seed=seed)
    with atomic(out) as draft:
        save_file({name: t.contiguous() for name, t in new.items()}, draft)
    return total


Kind = Literal["full", "diagonal", "low-rank", "pooled", "means"]


def collect_statistics(
    checkpoint: Path,
    site: Path,
    out: Path,
    *,
    model: str | None = None,
    classifier: str = "fc",
    normalize: str | None = None,
    kind: Kind = "full",
    rank: int = 16,
    min_class_count: int = 5,
) -> tuple[Statistics, int, list[int]]:
    """Write the class statistics of a site's features to a file.

    Args:
        checkpoint: Run folder, or file of weights.
        site: `.npz` file with x and y, or folder of images.
        out: Output file.
        model: Architecture of a file of weights; see `load_model_and_data`.
        classifier: Name of the last linear layer of such a model.
        normalize: Normalization of images; None: that of the run.
        kind: Kind of second moments.
        rank: Rank per class of low-rank statistics.
        min_class_count: Classes with fewer samples are excluded.

    Returns:
        The statistics, the file size in bytes, and the excluded classes.
    """
    check_out(out)
    trained, data, transform = load_model_and_data(checkpoint, site, model, classifier, normalize)
    low_rank = kind == "low-rank"
    stored: Any = "full" if low_rank else kind
    collected = statistics_of(
        trained, data.x, data.y, transform=transform, kind=stored, min_class_count=min_class_count
    )
    counts = torch.bincount(torch.as_tensor(data.y).long(), minlength=collected.classes)
    left_out = torch.nonzero((counts > 0) & (collected.count.cpu() == 0)).flatten().tolist()
    return collected, save_statistics(out, collected, rank if low_rank else None), cast("list[int]", left_out)


def check_out(out: Path) -> None:
    """Check that a file can be written, and create its folder."""
    check_writable(out.parent, "the file", "--out")
    require(not out.is_dir(), f"--out {out} is a folder: give the name of a file, such as {out / 'out.safetensors'}")


def _run_model(run: Path, trained: TrainedState) -> SplitModel:
    """Return the global model of a run."""
    method = trained.clients.method
    require(set(PARTS) <= set(method.shared), f"{run}: {method.name} leaves no global model to calibrate")
    model = copy.deepcopy(trained.clients.task.model)
    load(model, trained.server["model"].part(*PARTS))
    return model


def load_model_and_data(
    checkpoint: Path, site: Path, model: str | None, classifier: str, normalize: str | None
) -> tuple[SplitModel, Samples, AnyTransform]:
    """Load a trained model and a site's samples.

    Args:
        checkpoint: Run folder, or file of weights.
        site: `.npz` file with x and y, or folder of images.
        model: Architecture of a file of weights: a built-in name, optionally with parameters, or a function without
            arguments that returns the module, as `module:function` or `file.py:function`.
        classifier: Name of the last linear layer of such a model.
        normalize: Normalization of images; None: that of the run.

    Returns:
        The model, the samples, and the transform from samples to model inputs.
    """
    require(site.exists(), f"{site} is not there: give an .npz file with x and y, or a folder of images")
    run = load_result(checkpoint, device="cpu").trained if checkpoint.is_dir() else None
    known = None if run is None else run.clients.federation
    federation = _site(site, None if known is None else known.class_names)
    transform = federation.transform if known is None else known.transform
    if normalize is not None:
        transform = Transform.named(normalize=normalize)
    if run is not None:
        trained = _run_model(checkpoint, run)
    else:
        trained = _architecture(model, classifier, read_file(checkpoint), federation)
    check_kind(transform, shape_of(federation.train.x))
    return trained, federation.train, transform


def _site(path: Path, names: Sequence[str] | None) -> Federation:
    """Read a site's samples as a federation of one client; some of the model's classes may be missing."""
    if path.is_file():
        content = sample_file.read_path(path)
        read = labels.read(content.y, f"{path}: y")
        if read.dtype.kind == "U" and names is None:
            raise BadInput(
                f"{path}: y holds words, but the names of the model's classes are unknown: give class indices"
            )
        count = 1 + int(read.max(initial=0)) if names is None else len(names)
        data = samples(content.x, read, Classes.known(read, names, count), content.layout, f"{path}:")
        return Federation.from_arrays(data.x, data.y, clients=1, classes=count, layout=stored_layout(data.x))
    content = sample_file.read_path(path)
    require("site" not in content.arrays, f"{path} holds the folders of several clients: give the folder of one")
    return Federation.from_arrays(
        content.x, content.y, clients=1, class_names=content.class_names, layout=content.layout
    )


def _architecture(model: str | None, classifier: str, w: dict[str, Tensor], federation: Federation) -> SplitModel:
    """Build the split model of a built-in name or of file.py:function with the weights of a file."""
    name = (model or "").partition("(")[0]
    if model is None or (":" not in name and name not in MODELS):
        raise BadInput(f"--model {model}: name the weights' architecture, a built-in model or file.py:function")
    if ":" not in name:
        classes = next((t.shape[0] for n, t in w.items() if n == "classifier.weight"), federation.classes)
        built = build_model(model, federation.input_shape, classes)
        load(built, Tree({n: t for n, t in w.items() if t.is_floating_point()}))
        return built
    function, _ = load_object(model, f"--model {model}", [Path.cwd()], modules_beside=True)
    with user_code(f"--model {model}"):
        net = function()
    require(isinstance(net, nn.Module), f"--model {model} made {type(net).__name__}, not a torch module")
    try:
        net.load_state_dict(w)
    except RuntimeError as error:
        raise BadInput(f"the weights don't fit {model}: {' '.join(str(error).split())[:200]}") from error
    return net if isinstance(net, SplitModel) else split(net, classifier=classifier)
