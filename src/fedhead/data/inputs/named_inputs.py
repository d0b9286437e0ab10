"""Named inputs: an image and a table row, or tokens and their mask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.core.tree.inputs import Inputs, shape_of
from fedhead.data.inputs import arrays, padding

LayoutLike = str | Mapping[str, str] | None  # layout of all inputs, layouts keyed by name, or None to infer
TOKENS = ("input_ids", "token_type_ids", "attention_mask", "position_ids")  # output names of tokenizers


def convert(x: Any, layout: LayoutLike, noun: str, missing: bool = False) -> Inputs:
    """Convert inputs, or each named input, to their stored form; see `fedhead.data.inputs.arrays.inputs`.

    Booleans, such as masks, stay booleans. Named features with one number per sample, [N], become [N, 1].

    Args:
        x: Array, tensor or list of samples, or a dictionary of these.
        layout: Layout of all inputs, or a dictionary; missing ones are inferred.
        noun: Name of the data in error messages.
        missing: Whether NaN is allowed in features.

    Raises:
        BadInput: If an input can't be converted, or the entries differ in length.
    """
    if not isinstance(x, Mapping):
        if isinstance(layout, Mapping):
            raise BadInput(f"layout gives one per name ({', '.join(layout)}), but {noun} is one array: give one layout")
        return arrays.inputs(x, layout, noun, missing)
    require(x, f"{noun} is an empty dictionary: give at least one named array")
    known = infer(x, layout, noun)
    entries = {str(name): _entry(value, known[str(name)], f"{noun}[{name!r}]", missing) for name, value in x.items()}
    sizes = {name: len(t) for name, t in entries.items()}
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    require(len(set(sizes.values())) == 1, f"{noun}: its entries differ in their number of samples ({listed})")
    return entries


def infer(x: Any, layout: LayoutLike, noun: str) -> Any:
    """Return the layout of inputs, or a dictionary for named inputs; missing ones are inferred.

    Raises:
        BadInput: If an entry is ambiguous, or a layout is given for an unknown name.
    """
    if not isinstance(x, Mapping):
        return arrays.infer_layout(x, noun) if layout is None else layout
    names = [str(name) for name in x]
    given = dict(layout) if isinstance(layout, Mapping) else dict.fromkeys(names, layout)
    for name in given:
        require(name in names, f"layout: {noun} has no entry {name!r}, it has {', '.join(names)}")
    return {str(name): given.get(str(name)) or _inferred(str(name), value, noun) for name, value in x.items()}


def prepare_like(x: Any, known: Inputs, stated: Any, noun: str) -> tuple[Any, LayoutLike]:
    """Pad inputs to the shape of known ones, such as those of a run, and return them with their layout.

    Args:
        x: Inputs; samples of different lengths are padded to the known length.
        known: Stored inputs of the required shape and type.
        stated: Layout of the known inputs, if given by the user.
        noun: Name of the data in error messages.

    Raises:
        BadInput: If several layouts give the shape, or a sample is too long.
    """
    if isinstance(known, dict):
        return padding.pad_to(x, shape_of(known)), arrays.stored_layout(known)
    return x, arrays.fitting_layout(x, shape_of(known), stated, noun)


def _inferred(name: str, value: Any, noun: str) -> str:
    if _is_boolean(value):
        return "mask"
    if name in TOKENS:
        logger.info("%s[%r] is read as layout=tokens", noun, name)
        return "tokens"
    try:
        return arrays.infer_layout(value, f"{noun}[{name!r}]")
    except BadInput as error:
        raise BadInput(re.sub(r'layout="(\w+)"', rf'layout={{"{name}": "\1"}}', str(error))) from None


def _entry(value: Any, layout: str, noun: str, missing: bool) -> Tensor:
    if _is_boolean(value):
        return torch.as_tensor(np.asarray(value)) if not isinstance(value, Tensor) else value.detach().cpu()
    tensor = arrays.to_tensor(value, noun)
    if tensor.ndim == 1 and layout == "tokens":
        return arrays.inputs(tensor.unsqueeze(1), layout, noun)[:, 0].contiguous()
    return arrays.inputs(tensor.unsqueeze(1) if tensor.ndim == 1 else tensor, layout, noun, missing)


def _is_boolean(value: Any) -> bool:
    return (value.dtype if isinstance(value, Tensor | np.ndarray) else np.asarray(value).dtype) in (torch.bool, bool)
