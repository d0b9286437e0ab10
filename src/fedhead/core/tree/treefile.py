"""Trees on disk: safetensors files without pickle, written atomically."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, Unreadable, first_line
from fedhead.core.system.special_files import refuse_special
from fedhead.core.tree.digest import digest_json, digest_of
from fedhead.core.tree.tree import Tree, Weights

_FORMAT = "fedhead-tree-3"
_CORRUPT = "it is corrupt, truncated or not a fedhead file"


def save_tree(path: str | Path, tree: Tree, metadata: dict[str, Any] | None = None) -> None:
    """Write a tree and its metadata atomically to one safetensors file.

    Args:
        path: File to write.
        tree: Tree to save; names must not contain '/'.
        metadata: JSON-serializable dictionary.

    Raises:
        OSError: If the file can't be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tree.leaves().items()}
    if len(tensors) != len(list(tree.tensors())):
        raise ValueError("two tensors of the tree have the same full name: names must not contain '/'")
    header = {"format": _FORMAT, "tree": json.dumps(describe(tree)), "metadata": json.dumps(metadata or {})}
    header["header_digest"] = _digest(header)
    header["digest"] = _digest(header, tensors)
    with atomic(path) as draft:
        try:
            save_file(_unshared(tensors), draft, metadata=header)
        except SafetensorError as error:  # such as a full disk: "... (os error 28)"
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def load_tree(path: str | Path) -> tuple[Tree, dict[str, Any]]:
    """Read a tree and its metadata from a file written by `save_tree`.

    Raises:
        BadInput: If the file is missing, corrupt or was not written by fedhead.
    """
    with _opened(path) as (file, header):
        # copies: the file's tensors are memory-mapped, and truncating the file would crash this process
        tensors: dict[str, Tensor] = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        tree = rebuild(json.loads(header["tree"]), tensors, "")
        if len(tree.leaves()) != len(tensors) or header["digest"] != _digest(header, tree.leaves()):
            raise Unreadable(f"{path} is corrupt: its numbers don't match its checksum")
        return tree, json.loads(header["metadata"])


def load_metadata(path: str | Path) -> dict[str, Any]:
    """Read only the metadata of a file written by `save_tree`; fast for any file size.

    Raises:
        BadInput: If the file is missing, corrupt or was not written by fedhead.
    """
    with _opened(path) as (_, header):
        return json.loads(header["metadata"])  # type: ignore[no-any-return]  # a JSON object, by its digest


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a file written by `save_tree` and check its header; all errors become `BadInput`."""
    try:
        refuse_special(Path(path))
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise BadInput(
                    f"{path} is a safetensors file, but not one that this version of fedhead wrote: open it with the "
                    "version that did, or give another file"
                )
            if header["header_digest"] != _digest(header):
                raise Unreadable(f"{path} is corrupt: its header doesn't match its checksum")
            yield file, header
    except BadInput:
        raise
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Unreadable(f"{path} can't be read: {_CORRUPT} ({first_line(error)})") from error


def describe(tree: Tree) -> dict[str, Any]:
    """Return the structure of a tree as JSON data; entries are lists, since safetensors does not keep their order."""
    entries = [[name, describe(value) if isinstance(value, Tree) else None] for name, value in tree.items()]
    if isinstance(tree, Weights):
        return {"kind": "Weights", "buffers": sorted(tree.buffers), "entries": entries}
    return {"kind": "Tree", "entries": entries}


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor], before: str = "") -> Tree:
    """Rebuild a tree from the result of `describe` and its tensors, keyed by full name."""
    entries: dict[str, Any] = {}
    for name, inner in description["entries"]:
        full = before + name
        entries[name] = tensors[full] if inner is None else rebuild(inner, tensors, full + "/")
    if description["kind"] == "Weights":
        return Weights(entries, description["buffers"])
    return Tree(entries)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors that share memory, such as rows of a stack, which safetensors refuses."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return out


def _digest(header: Mapping[str, str], tensors: Mapping[str, Tensor] | None = None) -> str:
    """Return a digest of a file's header and of its tensors with their names, dtypes and shapes."""
    return digest_json([*(header[name] for name in ("format", "tree", "metadata")), digest_of(tensors or {}, 16)], 16)
