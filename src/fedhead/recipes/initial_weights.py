"""Warm start: the first weights of models from a state dict, a file of weights or another run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedhead.core.components.loading import find_path
from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.tree.digest import digest_of
from fedhead.core.tree.treefile import load_tree
from fedhead.models.split_model import SplitModel, load, weights

Source = str | PathLike[str] | Mapping[str, Tensor]
_CHECKPOINT = "checkpoint.safetensors"  # of a run folder
_EXTRACTOR = "extractor."


def read_file(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a `.safetensors` or PyTorch file; nothing in it is run.

    Raises:
        BadInput: If the file is missing, unreadable, or holds something else.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not there: give a run folder, or a file of weights")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # whose own text advises to load it unsafely
        raise BadInput(f"{path} can't be read as weights: save model.state_dict() alone, or anew") from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"{path} can't be read as weights: {str(error).splitlines()[0]}") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(torch.is_tensor(t) for t in found.values()):
        raise BadInput(f"{path} holds no named weights: save model.state_dict()")
    return found


def read(source: Source, folders: Sequence[Path] = ()) -> dict[str, Tensor]:
    """Return named tensors.

    Args:
        source: A state dict, a file of weights, or a run folder with a global model.
        folders: Where a relative path is looked for, before the working directory.

    Raises:
        BadInput: If there is no such file, or it holds no weights.
    """
    if isinstance(source, Mapping):
        if not source or not all(isinstance(name, str) and torch.is_tensor(t) for name, t in source.items()):
            raise BadInput("weights: give a state dict, names with tensors, as model.state_dict() returns it")
        return dict(source)
    if not isinstance(source, str | PathLike):
        raise BadInput(f"weights is {type(source).__name__}: give a state dict, or the path of a file or run folder")
    path = find_path(os.fspath(source), folders) or Path(source)
    if not path.is_dir():
        return read_file(path)
    if not (path / _CHECKPOINT).exists():
        raise BadInput(f"weights: {path} is no run folder with a checkpoint: give one, or a file of weights")
    model = load_tree(path / _CHECKPOINT)[0]["server"].get("model")
    if not model:
        raise BadInput(f"weights: {path} holds no global model to start from: give a run of another method")
    return dict(model)


def start_from(models: Sequence[SplitModel], source: Source, folders: Sequence[Path] = ()) -> None:
    """Load first weights into models, in place.

    Names are those of the user's own module (`fedhead.split`), of the model's parts (`extractor.…`, `classifier.…`), or
    of the extractor alone, as pretrained models are published: a head beside it is left out.

    Args:
        models: The models; all of them take the same weights.
        source: What `read` takes.
        folders: As for `read`.

    Raises:
        BadInput: If a name is missing or unexpected, or a shape is another one.
    """
    given = {name: t for name, t in read(source, folders).items() if t.is_floating_point()}
    where = "the state dict" if isinstance(source, Mapping) else os.fspath(source)
    for model in models:
        own = weights(model)
        names = {name: name if model.origin is None else model.origin.own_name(name) for name in own}
        if set(given) <= set(own):
            names = {name: name for name in own}
        elif not any(theirs in given for name, theirs in names.items() if not name.startswith(_EXTRACTOR)):
            names = _extractor_alone(given, own) or names
        known = set(names.values())
        if missing := [name for name in names.values() if name not in given]:
            raise BadInput(f"weights: {where} lacks {missing[0]!r} of the model ({len(missing)} names are missing)")
        odd = [name for name in given if name not in known]
        if odd and names.keys() == own.keys():
            raise BadInput(f"weights: {where}: {unknown('name', odd[0], sorted(known))} ({len(odd)} are unexpected)")
        for name, theirs in names.items():
            if given[theirs].shape != own[name].shape:
                raise BadInput(
                    f"weights: {where}: {theirs!r} is {tuple(given[theirs].shape)}, the model needs "
                    f"{tuple(own[name].shape)}"
                )
            if not given[theirs].isfinite().all():
                raise BadInput(f"weights: {where}: {theirs!r} holds NaN or infinite numbers")
        load(model, own.replace({name: given[theirs] for name, theirs in names.items()}))


def _extractor_alone(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str] | None:
    """Return the extractor's names with those in a state dict of the extractor alone; None where it is another one.

    The file may hold a head beside it: one more submodule, under any name.
    """
    names = {name: name.removeprefix(_EXTRACTOR) for name in own if name.startswith(_EXTRACTOR)}
    others = {name.partition(".")[0] for name in given if name not in names.values()}
    fits = bool(names) and all(theirs in given for theirs in names.values()) and len(others) <= 1
    return names if fits else None


def digest(source: Source, folders: Sequence[Path] = ()) -> str:
    """Return a digest of the weights, by which a resumed run finds out that they were changed."""
    return digest_of(read(source, folders))
