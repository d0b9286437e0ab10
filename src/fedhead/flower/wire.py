"""The wire format: a JSON header and named trees of tensors in Flower's records, without pickle.

A message holds one config record, `fedhead`, with the format's version, the header and a description of every tree
(names in order, kinds, running statistics, dtypes, shapes), and one array record per tree with the bytes of its tensors
one after another: Flower carries every array by separate requests at each hop, and a deep network has hundreds. What
arrives is held against the description before anything is made of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedhead.core.tree import Tree
from fedhead.core.treefile import describe, rebuild
from fedhead.engine.reply_check import Refused

if TYPE_CHECKING:
    from flwr.app import RecordDict

FORMAT = "fedhead-wire-1"
_TOP, _BLOB = "fedhead", "tensors"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_DEPTH = 8  # of trees inside trees; ours have 4


def pack(header: Mapping[str, Any], trees: Mapping[str, Tree]) -> RecordDict:
    """A message's content from its header and trees."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict()
    described: dict[str, Any] = {}
    for name, tree in trees.items():
        leaves = tree.leaves()
        described[name] = {
            "tree": describe(tree),
            "tensors": [[full, _dtype_name(t), list(t.shape)] for full, t in leaves.items()],
        }
        parts = [_bytes(t) for t in leaves.values()]
        blob = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        content[name] = ArrayRecord({_BLOB: Array(blob)})
    top = {"format": FORMAT, "header": json.dumps(dict(header)), "trees": json.dumps(described)}
    content[_TOP] = ConfigRecord(top)  # type: ignore[arg-type]  # its values are texts, of which flwr's union is one
    return content


def unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, Tree]]:
    """The header and the trees of a message's content; `Refused` for anything that `pack` did not write."""
    if _TOP not in content.config_records:
        raise Refused("the message is not from fedhead: it has no 'fedhead' record")
    top = content.config_records[_TOP]
    if top.get("format") != FORMAT:
        raise Refused(
            f"the message is in format {top.get('format')!r}, this side reads {FORMAT!r}: update the older side"
        )
    try:
        header, described = json.loads(str(top["header"])), json.loads(str(top["trees"]))
        if not isinstance(header, dict) or not isinstance(described, dict):
            raise TypeError("header and trees must be objects")
        if described.keys() != content.array_records.keys():
            raise ValueError(f"trees {sorted(described)} are described, {sorted(content.array_records)} are there")
        trees = {name: _tree(name, described[name], content.array_records[name]) for name in described}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, EOFError) as error:
        raise Refused(f"the message can't be read: {error}") from error
    return header, trees


def _tree(where: str, described: dict[str, Any], arrays: Mapping[str, Any]) -> Tree:
    expected = [
        (str(full), _DTYPES[dtype], [int(side) for side in shape]) for full, dtype, shape in described["tensors"]
    ]
    if any(side < 0 for _, _, shape in expected for side in shape):
        raise ValueError(f"{where}: a tensor's sides can't be negative")
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in expected]
    blob = _blob(where, arrays, sum(sizes))
    tensors: dict[str, Tensor] = {}
    begin = 0
    for (full, dtype, shape), size in zip(expected, sizes, strict=True):
        tensors[full] = torch.zeros(shape, dtype=dtype)  # its own memory, aligned for its type
        if size:
            tensors[full].view(-1).view(torch.uint8).copy_(blob[begin : begin + size])
        if dtype == torch.bool:
            tensors[full] = tensors[full].view(torch.uint8) != 0  # a byte may hold anything, a bool must not
        begin += size
    if len(tensors) != len(expected):
        raise ValueError(f"{where}: a tensor is described twice")
    _check_names(described["tree"], 0)
    tree = rebuild(described["tree"], tensors)
    if tree.leaves().keys() != tensors.keys():
        raise ValueError(f"{where}: the description names other tensors than the tree")
    return tree


def _blob(where: str, arrays: Mapping[str, Any], size: int) -> Tensor:
    """The bytes of a tree's tensors, if they are as many as described."""
    if arrays.keys() != {_BLOB}:
        raise ValueError(f"{where}: its record must hold one array, {_BLOB!r}")
    array = arrays[_BLOB]
    if array.stype != "numpy.ndarray" or array.dtype != "uint8" or tuple(array.shape) != (size,):
        raise ValueError(f"{where}: {array.dtype} {list(array.shape)} came, {size} bytes were described")
    if not size <= len(array.data) <= size + 65536:  # numpy's own header comes on top
        raise ValueError(f"{where}: {len(array.data)} bytes can't hold {size}")
    stored = array.numpy()  # numpy's format, with pickle forbidden
    if stored.dtype != np.uint8 or stored.shape != (size,):
        raise ValueError(f"{where}: the bytes hold {stored.dtype} {list(stored.shape)}")
    return torch.from_numpy(np.array(stored, copy=True))


def _check_names(description: Any, depth: int) -> None:
    if depth > _DEPTH:
        raise ValueError(f"trees nested deeper than {_DEPTH}")
    if description["kind"] not in ("Tree", "Weights"):
        raise ValueError(f"unknown kind of tree {description['kind']!r}")
    names = [name for name, _ in description["entries"]]
    if len(set(names)) != len(names) or not all(isinstance(name, str) and "/" not in name for name in names):
        raise ValueError("names of tensors must be texts, different, and without '/'")
    for _, inner in description["entries"]:
        if inner is not None:
            _check_names(inner, depth + 1)


def _bytes(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"tensors of {name} can't be sent")
    return name
