"""Trees on disk: safetensors files without pickle, written so that a crash leaves the old file or the new one."""

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
    """Yield a temporary path whose file replaces `path` at the end, so that a crash at any moment leaves the old file.

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
        draft.chmod(0o644)  # temporary files are created readable by their owner only
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _flush(path.parent)  # the rename itself must reach the disk too


def save_tree(path: str | Path, tree: Tree, metadata: dict[str, Any] | None = None) -> None:
    """Write a tree and its metadata atomically to one safetensors file.

    Args:
        path: File to write.
        tree: Tree to save; names must not contain '/'.
        metadata: Anything that JSON can represent.
    """
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
    """Read a tree and its metadata from a file written by `save_tree`.

    Raises:
        BadInput: If the file is missing, corrupt or was not written by fedhead.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path} does not exist: expected a file that fedhead wrote")
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
        raise BadInput(f"{path} can't be read: it is corrupt, truncated or not a fedhead file ({error})") from error
    if not sound:
        raise BadInput(f"{path} is corrupt: its numbers don't match its checksum")
    return tree, metadata


def load_metadata(path: str | Path) -> dict[str, Any]:
    """Read only the metadata of a file written by `save_tree`, which takes no time however large the file is.

    Raises:
        BadInput: If the file is missing, corrupt or was not written by fedhead.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = json.loads((file.metadata() or {})["metadata"])
            return metadata
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} can't be read: it is corrupt, truncated or not a fedhead file ({error})") from error


def describe(tree: Tree) -> dict[str, Any]:
    """Return the structure of a tree as JSON data; as lists, since safetensors files don't keep the order."""
    entries = [[name, describe(value) if isinstance(value, Tree) else None] for name, value in tree.items()]
    if isinstance(tree, Weights):
        return {"kind": "Weights", "buffers": sorted(tree.buffers), "entries": entries}
    return {"kind": "Tree", "entries": entries}


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor], before: str = "") -> Tree:
    """Rebuild the tree that `describe` described from its tensors by full name."""
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
    """Clone tensors that share memory (rows of a stack do), which safetensors refuses."""
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
