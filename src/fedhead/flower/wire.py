"""The wire format: a JSON header and named trees of tensors in Flower's records, without pickle.

A message holds one config record, `fedhead`, with the format's version, the header and a description of every tree
(names in order, kinds, running statistics, dtypes, shapes), and one array record a tree, an array a tensor. What
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

from fedhead.engine.gate import Refused
from fedhead.tree import Tree
from fedhead.treefile import describe, rebuild

if TYPE_CHECKING:
    from flwr.app import RecordDict

FORMAT = "fedhead-wire-1"
_TOP = "fedhead"
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
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict()
    described: dict[str, Any] = {}
    for name, tree in trees.items():
        leaves = tree.leaves()
        described[name] = {
            "tree": describe(tree),
            "tensors": [[full, _dtype_name(t), list(t.shape)] for full, t in leaves.items()],
        }
        content[name] = ArrayRecord({full: _array(t) for full, t in leaves.items()})
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
    expected = {str(full): (str(dtype), [int(side) for side in shape]) for full, dtype, shape in described["tensors"]}
    for full in sorted(expected.keys() ^ arrays.keys()):
        raise ValueError(f"{where}: tensor {full!r} is {'missing' if full in expected else 'not described'}")
    tensors = {full: _tensor(f"{where}/{full}", arrays[full], *expected[full]) for full in expected}
    _check_names(described["tree"], 0)
    tree = rebuild(described["tree"], tensors)
    if tree.leaves().keys() != tensors.keys():
        raise ValueError(f"{where}: the description names other tensors than the tree")
    return tree


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


def _array(tensor: Tensor) -> Any:
    from flwr.app import Array

    tensor = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16: its bits travel as int16
    return Array((tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _tensor(where: str, array: Any, dtype: str, shape: list[int]) -> Tensor:
    if dtype not in _DTYPES:
        raise ValueError(f"{where}: unknown dtype {dtype!r}")
    as_stored = "int16" if dtype == "bfloat16" else dtype
    if array.stype != "numpy.ndarray" or array.dtype != as_stored or list(array.shape) != shape:
        raise ValueError(f"{where}: the array is {array.dtype} {list(array.shape)}, described as {dtype} {shape}")
    room = math.prod(shape) * np.dtype(as_stored).itemsize
    if not room <= len(array.data) <= room + 65536:  # numpy's own header comes on top
        raise ValueError(f"{where}: {len(array.data)} bytes can't hold {dtype} {shape}")
    stored = array.numpy()  # numpy's format, with pickle forbidden
    if str(stored.dtype) != as_stored or list(stored.shape) != shape:
        raise ValueError(f"{where}: the bytes hold {stored.dtype} {list(stored.shape)}, described as {dtype} {shape}")
    tensor = torch.from_numpy(np.array(stored, copy=True, order="C"))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"tensors of {name} can't be sent")
    return name
