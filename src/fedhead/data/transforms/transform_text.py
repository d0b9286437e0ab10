"""Formula of a run's normalization, for models used outside of fedhead."""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.core.tree.inputs import Inputs
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, NamedTransforms

SHOWN = 3  # channels whose means and deviations are printed; a table may have hundreds of columns


def normalization_text(transform: AnyTransform, x: Inputs) -> str | None:
    """Return the formula from stored samples to model inputs.

    Args:
        transform: The transform of a federation.
        x: Samples as the federation stores them; only their types matter.

    Returns:
        The formula, with the name of each entry where x has several; None: the model is given the samples as they are.

    >>> normalization_text(Transform.named(normalize="half"), torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    '(x / 255 - 0.5) / 0.5'
    """
    if isinstance(x, dict):
        assert isinstance(transform, NamedTransforms)
        parts = {name: _formula(transform.parts[name], t, name) for name, t in x.items() if name in transform.parts}
        return "; ".join(f"{name}: {text}" for name, text in parts.items() if text is not None) or None
    assert isinstance(transform, Transform)
    return _formula(transform, x, "x")


def _formula(transform: Transform, x: Tensor, name: str) -> str | None:
    if x.dtype == torch.int64:  # tokens are no numbers
        return None
    scaled = name if x.is_floating_point() else f"{name} / 255"
    trivial = not transform.mean or (transform.mean == (0.0,) and transform.std == (1.0,))
    text = scaled if trivial else f"({scaled} - {_numbers('mean', transform.mean)}) / {_numbers('std', transform.std)}"
    if transform.resize is not None:
        text += f", for images resized to {transform.resize} x {transform.resize} (bicubic)"
    return None if text == name else text


def _numbers(name: str, values: tuple[float, ...]) -> str:
    if len(values) > SHOWN:
        return name
    shown = [f"{value:.6g}" for value in values]
    return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
