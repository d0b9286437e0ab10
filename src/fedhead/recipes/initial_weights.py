"""Warm start: initial weights of models from a state dict, a file or another run."""

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
    """Read the named tensors of a `.safetensors` or PyTorch file, without executing code in it.

    Raises:
        BadInput: If the file is missing, unreadable, or has other content.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not there: give a run folder, or a file of weights")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message suggests unsafe loading
        raise BadInput(f"{path} can't be read as weights: save model.state_dict() alone, or anew") from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"{path} can't be read as weights: {str(error).splitlines()[0]}") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(torch.is_tensor(t) for t in content.values()):
        raise BadInput(f"{path} holds no named weights: save model.state_dict()")
    return content


def read(source: Source, folders: Sequence[Path] = ()) -> dict[str, Tensor]:
    """Read named tensors from a source.

    Args:
        source: State dict, file of weights, or run folder with a global model.
        folders: Search path of relative paths, before the working directory.

    Raises:
        BadInput: If the file does not exist or has no weights.
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
    """Load initial weights into models, in place.

    Names are those of the user's module (`fedhead.split`), of the model's parts (`extractor.…`, `classifier.…`), or of
    the extractor only, as in published pretrained models, whose head is ignored.

    Args:
        models: Models; all get the same weights.
        source: Source, see `read`.
        folders: Search path, see `read`.

    Raises:
        BadInput: If a name is missing or unexpected, or a shape differs.
    """
    given = {name: t for name, t in read(source, folders).items() if t.is_floating_point()}
    where = "the state dict" if isinstance(source, Mapping) else os.fspath(source)
    for model in models:
        current = weights(model)
        names = {name: name if model.origin is None else model.origin.own_name(name) for name in current}
        if set(given) <= set(current):
            names = {name: name for name in current}
        elif not any(theirs in given for name, theirs in names.items() if not name.startswith(_EXTRACTOR)):
            names = _extractor_alone(given, current) or names
        known = set(names.values())
        if missing := [name for name in names.values() if name not in given]:
            raise BadInput(f"weights: {where} lacks {missing[0]!r} of the model ({len(missing)} names are missing)")
        odd = [name for name in given if name not in known]
        if odd and names.keys() == current.keys():
            raise BadInput(f"weights: {where}: {unknown('name', odd[0], sorted(known))} ({len(odd)} are unexpected)")
        for name, theirs in names.items():
            if given[theirs].shape != current[name].shape:
                raise BadInput(
                    f"weights: {where}: {theirs!r} is {tuple(given[theirs].shape)}, the model needs "
                    f"{tuple(current[name].shape)}"
                )
            if not given[theirs].isfinite().all():
                raise BadInput(f"weights: {where}: {theirs!r} holds NaN or infinite numbers")
        load(model, current.replace({name: given[theirs] for name, theirs in names.items()}))


def _extractor_alone(given: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> dict[str, str] | None:
    """Map the extractor's names to those of a state dict of the extractor only; None if they don't match.

    The state dict may also have a head: one more submodule with any name.
    """
    names = {name: name.removeprefix(_EXTRACTOR) for name in current if name.startswith(_EXTRACTOR)}
    others = {name.partition(".")[0] for name in given if name not in names.values()}
    fits = bool(names) and all(theirs in given for theirs in names.values()) and len(others) <= 1
    return names if fits else None


def digest(source: Source, folders: Sequence[Path] = ()) -> str:
    """Return a digest of the weights, by which a resumed run detects changes."""
    return digest_of(read(source, folders))
