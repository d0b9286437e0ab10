"""Trees on disk: safetensors files, without pickle, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights

_FORMAT = "fedhead-tree-1"


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A path to write to that takes the place of `path` at the end, whole: a crash at any moment leaves the old file.

    >>> with tempfile.TemporaryDirectory() as folder, atomic(Path(folder) / "a") as draft:
    ...     _ = draft.write_text("hello")
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        _flush(draft)
        draft.chmod(0o644)  # temporary files are made readable to their owner alone
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _flush(path.parent)  # the renaming itself must reach the disk too


def save_tree(path: str | Path, tree: Tree, metadata: dict[str, Any] | None = None) -> None:
    """Write a tree and any metadata that JSON can hold to one safetensors file, atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tree.leaves().items()}
    if len(tensors) != sum(1 for _ in _names(tree)):
        raise ValueError("two tensors of the tree have the same full name: names must not contain '/'")
    header = {
        "format": _FORMAT,
        "tree": json.dumps(describe(tree)),
        "metadata": json.dumps(metadata or {}),
        "digest": _digest(tensors),
    }
    with atomic(path) as draft:
        save_file(_unshared(tensors), draft, metadata=header)


def load_tree(path: str | Path) -> tuple[Tree, dict[str, Any]]:
    """Read what `save_tree` wrote: the tree, equal in every name, kind and number, and the metadata."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path} is not there: expected a file that fedhead wrote")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise BadInput(f"{path} is a safetensors file, but not one that fedhead wrote")
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        tree = rebuild(json.loads(header["tree"]), tensors, "")
        metadata: dict[str, Any] = json.loads(header["metadata"])
        sound = header["digest"] == _digest(tree.leaves())
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} can't be read: it is corrupt, cut short or no fedhead file ({error})") from error
    if not sound:
        raise BadInput(f"{path} is corrupt: its numbers don't match its checksum")
    return tree, metadata


def describe(tree: Tree) -> dict[str, Any]:
    """The tree without its numbers; lists, as the order of names counts and a safetensors file doesn't keep it."""
    entries = [[name, describe(value) if isinstance(value, Tree) else None] for name, value in tree.items()]
    if isinstance(tree, Weights):
        return {"kind": "Weights", "buffers": sorted(tree.buffers), "entries": entries}
    return {"kind": "Tree", "entries": entries}


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor], before: str = "") -> Tree:
    """The tree that was described, from its tensors by full name."""
    entries: dict[str, Any] = {}
    for name, inner in description["entries"]:
        full = before + name
        entries[name] = tensors[full] if inner is None else rebuild(inner, tensors, full + "/")
    if description["kind"] == "Weights":
        return Weights(entries, description["buffers"])
    return Tree(entries)


def _names(tree: Tree) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Tree):
            yield from _names(value)
        else:
            yield name


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, each in memory of its own: safetensors refuses two that share some (rows of a stack do)."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return out


def _digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        total.update(name.encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
