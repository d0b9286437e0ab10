"""Wire format: a JSON header and named trees of tensors in Flower records, without pickle.

A message has one config record, `fedhead`, with the format version, the header, a schema of every tree (names in order,
kinds, running statistics, dtypes, shapes) and the bytes of all tensors. More than 8 MB of them are in further records.
Flower transfers every record by separate requests, and an array record by three times more.

Messages are validated before memory is allocated: the lengths of the texts before parsing, the schema against the
expected trees if these are known (on the server, from its dry run), and the bytes against the schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedhead.core.system.text import printable
from fedhead.core.tree.schema import schema
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import describe, rebuild
from fedhead.engine.policies.reply_check import Refused, difference

if TYPE_CHECKING:
    from flwr.app import RecordDict

FORMAT = "fedhead-wire-1"
_TOP, _BLOB = "fedhead", "tensors"
_PIECE = 2**23  # bytes of tensors in a record
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_DEPTH = 8  # limit of nested trees; ours have 4
_SIDES, _ELEMENTS = 16, 2**48  # limits of a tensor; sides of length 0 count as 1

# Length limits of header and schema, in characters. A response has a short header, and a schema as long as the expected
# one, with some slack so that a wrong schema gives a useful error.
RESPONSE_HEADER, RESPONSE_ROOM = 2**18, 2**14
REQUEST_HEADER, REQUEST_DESCRIPTION = 2**24, 2**26


def pack(header: Mapping[str, Any], trees: Mapping[str, Tree]) -> RecordDict:
    """Serialize a header and trees into a message's content."""
    from flwr.app import ConfigRecord, RecordDict

    blob = b"".join(_bytes(t) for tree in trees.values() for t in tree.leaves().values())
    texts = {"format": FORMAT, "header": json.dumps(dict(header)), "trees": json.dumps(_described(trees))}
    content = RecordDict({_TOP: ConfigRecord({**texts, _BLOB: blob[:_PIECE]})})
    for k in range(1, _pieces(len(blob))):
        content[f"{_TOP}/{k}"] = ConfigRecord({_BLOB: blob[k * _PIECE : (k + 1) * _PIECE]})
    return content


def unpack(content: RecordDict, expected: Mapping[str, Tree] | None = None) -> tuple[dict[str, Any], dict[str, Tree]]:
    """Deserialize the header and the trees of a message's content.

    Args:
        content: Received records.
        expected: Trees with the valid names, order, shapes and dtypes; the message may have a subset of them. Their
            tensors may be on the meta device. None: any trees, within the limits of a request.

    Raises:
        Refused: For content that `pack` did not write, that exceeds the limits, or that was not expected.
    """
    if _TOP not in content.config_records:
        raise Refused("the message is not from fedhead: it has no 'fedhead' record")
    records = content.config_records
    top = records[_TOP]
    if top.get("format") != FORMAT:
        theirs = printable(repr(top.get("format")), 40)
        raise Refused(f"the message is in format {theirs}, this side reads {FORMAT!r}: update the older side")
    longest = REQUEST_HEADER, REQUEST_DESCRIPTION
    if expected is not None:
        longest = RESPONSE_HEADER, RESPONSE_ROOM + 2 * len(json.dumps(_described(expected)))
    try:
        header = _parsed(top["header"], "header", longest[0])
        described = _parsed(top["trees"], "description", longest[1])
        if expected is not None:
            _compare(described, expected)
        blob, trees = _blob(content, sum(map(_size, described.values()))), {}
        for name, entry in described.items():
            trees[name], blob = _tree(name, entry, blob), blob[_size(entry) :]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, EOFError, OverflowError) as error:
        raise Refused(f"the message can't be read: {printable(error)}") from error
    return header, trees


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _described(trees: Mapping[str, Tree]) -> dict[str, Any]:
    return {
        name: {
            "tree": describe(tree),
            "tensors": [[full, _dtype_name(t), list(t.shape)] for full, t in tree.leaves().items()],
        }
        for name, tree in trees.items()
    }


def _parsed(text: Any, name: str, longest: int) -> dict[str, Any]:
    """Parse a JSON object after checking its length."""
    _check(isinstance(text, str), f"its {name} must be a text")
    _check(len(text) <= longest, f"its {name} has {len(text)} characters, at most {longest} are read")
    entries = json.loads(text)
    _check(isinstance(entries, dict), f"its {name} must be an object")
    return dict(entries)


def _compare(described: Mapping[str, Any], expected: Mapping[str, Tree]) -> None:
    """Check that trees match the expected ones; the error names the first difference."""
    known = _described(expected)
    for name, entry in described.items():
        if name not in known:
            raise Refused(f"the message holds a tree {printable(repr(name), 40)} that was not asked for")
        if entry == known[name]:
            continue
        came = {full: (tuple(shape), dtype) for full, dtype, shape in _tensors(entry["tensors"])}
        odd = difference(came, schema(expected[name]))
        raise Refused(odd or "the reply's tensors are in another order or of another kind than expected")


def _tensors(listed: Any) -> list[tuple[str, torch.dtype, list[int]]]:
    """Return names, dtypes and shapes of tensors in a schema, checked against overflow."""
    tensors = []
    for full, dtype, shape in listed:
        is_valid = isinstance(full, str) and isinstance(shape, list) and len(shape) <= _SIDES
        _check(is_valid, f"a tensor has a text as its name and at most {_SIDES} sides")
        sized = all(type(side) is int and side >= 0 for side in shape) and math.prod(s or 1 for s in shape) <= _ELEMENTS
        _check(sized, f"a tensor's sides must be whole numbers, not negative, of at most {_ELEMENTS} elements")
        tensors.append((full, _DTYPES[dtype], shape))
    return tensors


def _size(described: dict[str, Any]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in _tensors(described["tensors"]))


def _tree(where: str, described: dict[str, Any], blob: Tensor) -> Tree:
    expected = _tensors(described["tensors"])
    tensors: dict[str, Tensor] = {}
    begin = 0
    for full, dtype, shape in expected:
        size = math.prod(shape) * dtype.itemsize
        tensors[full] = torch.zeros(shape, dtype=dtype)  # new memory, aligned for the dtype
        if size:
            tensors[full].view(-1).view(torch.uint8).copy_(blob[begin : begin + size])
        if dtype == torch.bool:
            tensors[full] = tensors[full].view(torch.uint8) != 0  # normalizes bytes to valid bools
        begin += size
    _check(len(tensors) == len(expected), f"{where}: a tensor is described twice")
    _check_names(described["tree"], 0)
    tree = rebuild(described["tree"], tensors)
    _check(tree.leaves().keys() == tensors.keys(), f"{where}: the description names other tensors than the tree")
    return tree


def _pieces(size: int) -> int:
    """Return the number of records of a message with that many bytes of tensors."""
    return max(1, -(-size // _PIECE))


def _blob(content: RecordDict, size: int) -> Tensor:
    """Return the bytes of all tensors after checking the records and their number."""
    count, records = _pieces(size), content.config_records
    _check(len(content) == count, f"{count} records are described, {len(content)} are there")
    first, *others = (records[name] for name in (_TOP, *(f"{_TOP}/{k}" for k in range(1, count))))
    valid = first.keys() == {"format", "header", "trees", _BLOB} and all(each.keys() == {_BLOB} for each in others)
    values = [each[_BLOB] for each in (first, *others)] if valid else []
    pieces = [value for value in values if isinstance(value, bytes)]
    _check(len(pieces) == count, f"its records must hold bytes, {_BLOB!r}")
    blob = bytearray().join(pieces)
    _check(len(blob) == size, f"{len(blob)} bytes came, {size} were described")
    return torch.frombuffer(blob, dtype=torch.uint8) if size else torch.zeros(0, dtype=torch.uint8)


def _check_names(description: Any, depth: int) -> None:
    _check(depth <= _DEPTH, f"trees nested deeper than {_DEPTH}")
    _check(description["kind"] in ("Tree", "Weights"), f"unknown kind of tree {description['kind']!r}")
    names = [name for name, _ in description["entries"]]
    valid = len(set(names)) == len(names) and all(isinstance(name, str) and "/" not in name for name in names)
    _check(valid, "names of tensors must be texts, different, and without '/'")
    for _, inner in description["entries"]:
        if inner is not None:
            _check_names(inner, depth + 1)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"tensors of {name} can't be sent")
    return name
