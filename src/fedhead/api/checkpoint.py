"""Trained models on disk: the global model of a run folder, or a file of weights with its architecture."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedhead.core.components.loading import load_object
from fedhead.core.system.errors import BadInput, user_code
from fedhead.core.training.batch import PARTS
from fedhead.core.tree.inputs import map_inputs, to_dtype
from fedhead.core.tree.tree import Tree
from fedhead.data.federation import federation_file
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import labels
from fedhead.data.inputs.arrays import Samples, stored_layout
from fedhead.data.inputs.conversion import samples
from fedhead.data.inputs.labels import Classes
from fedhead.data.sources import datasets, sources
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.models import MODELS, load
from fedhead.models import build as build_model
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split
from fedhead.recipes.initial_weights import read_file
from fedhead.runs.reopen import checkpoint_state, open_experiment
from fedhead.runs.run_folder import RunFolder


def run_model(run: Path) -> SplitModel:
    """Load the global model of a run folder.

    Raises:
        BadInput: If the run's method leaves no global model.
    """
    folder, experiment = open_experiment(run)
    method = experiment.method
    if not set(PARTS) <= set(method.shared):
        raise BadInput(f"{run}: {method.name} leaves no global model to calibrate")
    model = copy.deepcopy(experiment.models[0])
    load(model, checkpoint_state(folder)[1]["server"]["model"].part(*PARTS))
    return model


def model_and_data(
    checkpoint: Path, site: Path, model: str | None, classifier: str, normalize: str | None
) -> tuple[SplitModel, Samples, AnyTransform]:
    """Load a trained model and a site's samples.

    Args:
        checkpoint: A run folder, or a file of weights.
        site: An `.npz` file with x and y, or a folder of images.
        model: The architecture of a file of weights: a built-in name, also with parameters, or a function without
            arguments that returns the module, as `module:function` or `file.py:function`.
        classifier: The name of the last linear layer of such a model.
        normalize: How images are normalized; None: as in the run's training.

    Returns:
        The model, the samples, and the transform that brings these to the model's inputs.
    """
    if not site.exists():
        raise BadInput(f"{site} is not there: give an .npz file with x and y, or a folder of images")
    recipe = RunFolder.open(checkpoint).recipe if checkpoint.is_dir() else None
    entry = datasets.get(recipe.dataset) if recipe is not None and recipe.dataset in datasets.DATASETS else None
    federation = _site(site, None if entry is None else entry.names)
    transform = federation.transform if normalize is None else Transform.named(normalize=normalize)
    if recipe is not None:
        loaded = run_model(checkpoint)
        if normalize is None and entry is not None:
            transform = entry.transform.replace(None, recipe.normalize)
    else:
        loaded = _architecture(model, classifier, read_file(checkpoint), federation)
    if int(federation.train.y.max()) >= loaded.classes:
        raise BadInput(f"{site}: label {int(federation.train.y.max())} is outside the model's {loaded.classes} classes")
    _refuse_inputs(loaded, federation, transform, site)
    return loaded, federation.train, transform


def _site(path: Path, names: Sequence[str] | None) -> Federation:
    """A site's samples, as a federation of one; its labels are the classes of the model, some of which it may lack."""
    if path.is_file():
        held = federation_file.read(path)
        read = labels.read(held.y, f"{path}: y")
        if read.dtype.kind == "U" and names is None:
            raise BadInput(
                f"{path}: y holds words, but the names of the model's classes are unknown: give class indices"
            )
        count = 1 + int(read.max(initial=0)) if names is None else len(names)
        data = samples(held.x, read, Classes.known(read, names, count), held.layout, f"{path}:")
        return Federation.from_arrays(data.x, data.y, clients=1, classes=count, layout=stored_layout(data.x))
    found = sources.folder(path, None)
    if found.clients is not None:
        raise BadInput(f"{path} holds the folders of {len(found.parts)} clients: give the folder of one")
    data = found.parts[0]
    return Federation.from_arrays(data.x, data.y, clients=1, names=found.names, layout=stored_layout(data.x))


def _architecture(model: str | None, classifier: str, w: dict[str, Tensor], federation: Federation) -> SplitModel:
    """The module of a built-in name or of file.py:function, with the weights of a file, in its parts."""
    if model is None:
        raise BadInput("--model: which architecture do the weights belong to? A built-in name, or file.py:function")
    name = model.partition("(")[0]
    if ":" not in name:
        if name not in MODELS:
            raise BadInput(f"--model {model!r} is no built-in model; for one of yours write file.py:function")
        classes = next((t.shape[0] for n, t in w.items() if n == "classifier.weight"), federation.classes)
        made = build_model(model, federation.input_shape, classes)
        load(made, Tree({n: t for n, t in w.items() if t.is_floating_point()}))
        return made
    function, _ = load_object(model, f"--model {model}", [Path.cwd()], modules_beside=True)
    with user_code(f"--model {model}"):
        net = function()
    if not isinstance(net, nn.Module):
        raise BadInput(f"--model {model} made {type(net).__name__}, not a torch module")
    try:
        net.load_state_dict(w)
    except RuntimeError as error:
        raise BadInput(f"the weights don't fit {model}: {' '.join(str(error).split())[:200]}") from error
    return net if isinstance(net, SplitModel) else split(net, classifier=classifier)


def _refuse_inputs(model: SplitModel, federation: Federation, transform: AnyTransform, site: Path) -> None:
    try:
        with torch.no_grad():
            x: Any = transform(map_inputs(lambda t: t[:1], federation.train.x))
            model.eval()(to_dtype(x, next(model.parameters()).dtype))
    except (RuntimeError, ValueError, IndexError, BadInput) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{site}: the model can't take samples of shape {federation.input_shape} ({reason})") from error
