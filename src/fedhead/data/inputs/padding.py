"""Padding of samples to equal length, with a mask of valid positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger

MASKS = ("mask", "attention_mask")  # entries that are masks themselves


def pad_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Pad samples of different lengths to the longest sample of all parts.

    Lists of arrays or lists of different lengths become two entries: the values, padded with 0, and booleans that
    are true for values and false for padding. Other inputs are returned unchanged.

    Args:
        parts: Inputs keyed by the part's name (the training data, a client, the test set): arrays, lists, or
            dictionaries of these.

    Returns:
        The parts, each a dictionary if padded.

    >>> pad_parts({"train": [[1, 2, 3], [4]]})["train"]["mask"].tolist()
    [[True, True, True], [True, False, False]]
    """
    if all(isinstance(x, Mapping) for x in parts.values()) and parts:
        new: dict[str, dict[str, Any]] = {part: dict(x) for part, x in parts.items()}
        has_mask = any(name in x for x in new.values() for name in MASKS)
        for name in dict.fromkeys(name for x in new.values() for name in x):
            values = {part: x[name] for part, x in new.items() if name in x}
            if (longest := _longest(values)) is not None:
                for part, samples in values.items():
                    new[part][name], mask = _pad(samples, longest, f"{part} {name}")
                    if not has_mask:
                        new[part][f"{name}_mask"] = mask
        return dict(new)
    if (longest := _longest(parts)) is None:
        return dict(parts)
    logger.info("samples of up to %d steps are filled up to one length, as inputs x and mask", longest)
    return {part: dict(zip(("x", "mask"), _pad(x, longest, part), strict=True)) for part, x in parts.items()}


def pad_to(x: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Pad samples to given lengths, such as a site's samples to the lengths of the whole federation.

    Args:
        x: List of samples, or a dictionary of lists and arrays.
        shapes: Shape of one sample, keyed by the input's name; the first axis is the length.

    Returns:
        Named inputs.

    Raises:
        BadInput: If a sample is longer.
    """
    parts = dict(x) if isinstance(x, Mapping) else {"x": x}
    for name in list(parts):
        if name not in shapes or not _is_list(parts[name]):
            continue
        longest = max(len(sample) for sample in parts[name])
        if longest > shapes[name][0]:
            raise BadInput(f"{name} has a sample of {longest} steps, the run is for {shapes[name][0]}: cut it")
        parts[name], mask = _pad(parts[name], shapes[name][0], name)
        for of_mask in ("mask", f"{name}_mask"):
            if of_mask in shapes and of_mask not in parts:
                parts[of_mask] = mask
    return parts


def _longest(parts: Mapping[str, Any]) -> int | None:
    """Return the length of the longest sample if lengths differ, else None."""
    lengths: set[int] = set()
    for samples in parts.values():
        if not _is_list(samples):
            return None
        lengths |= {len(sample) for sample in samples}
    return max(lengths) if len(lengths) > 1 else None


def _is_list(samples: Any) -> bool:
    """Return whether samples are a list of arrays or lists, which may differ in length."""
    if isinstance(samples, np.ndarray) and samples.dtype == object:
        samples = list(samples)
    if not isinstance(samples, list | tuple) or not samples:
        return False
    return all(hasattr(s, "__len__") and not isinstance(s, str | bytes | Mapping) and np.ndim(s) for s in samples)


def _pad(samples: Sequence[Any], length: int, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    arrays = [np.asarray(sample) for sample in samples]
    full = [a for a in arrays if len(a)]
    rest = {a.shape[1:] for a in full}
    if len(rest) > 1 or not full:
        examples = ", ".join(str(shape) for shape in sorted({a.shape for a in arrays})[:3])
        raise BadInput(
            f"{name}: samples may differ in length only, these have the shapes {examples}: resize images first"
        )
    padded = np.zeros((len(arrays), length, *rest.pop()), np.result_type(*{a.dtype for a in full}))
    mask = np.zeros((len(arrays), length), bool)
    for row, there, array in zip(padded, mask, arrays, strict=True):
        if len(array):
            row[: len(array)] = array
            there[: len(array)] = True
    return padded, mask
