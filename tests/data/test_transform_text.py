"""What users are told of the normalization is what the transform computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fedhead.data.transforms.augment import NORMALIZATIONS, Transform
from fedhead.data.transforms.named_transforms import NamedTransforms
from fedhead.data.transforms.transform_text import normalization_text

ROOT = Path(__file__).parents[2]
BYTES = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("x", [BYTES, BYTES / 255], ids=["bytes", "floats"])
@pytest.mark.parametrize("normalize", ["half", "unit", "imagenet-gray"])
def test_the_formula_computes_what_the_transform_does(x: torch.Tensor, normalize: str) -> None:
    transform = Transform.named(normalize=normalize)
    formula = normalization_text(transform, x)
    found = x if formula is None else eval(formula, {"x": x})
    torch.testing.assert_close(found, transform(x))


def test_samples_that_stay_as_they_are_need_no_words() -> None:
    assert normalization_text(Transform(), torch.zeros(2, 5)) is None
    assert normalization_text(Transform.named(normalize="half"), torch.zeros(2, 5, dtype=torch.int64)) is None


def test_named_inputs_are_told_apart_and_long_tables_stay_short() -> None:
    x = {"image": BYTES, "row": torch.zeros(2, 9), "words": torch.zeros(2, 3, dtype=torch.int64)}
    parts = {"image": Transform.named(normalize="unit"), "row": Transform((1.0,) * 9, (2.0,) * 9)}
    assert normalization_text(NamedTransforms(parts), x) == "image: image / 255; row: (row - mean) / std"
    resized = Transform((0.1, 0.2, 0.3), (1.0, 1.0, 2.0), resize=8)
    text = normalization_text(resized, BYTES)
    assert text == "(x / 255 - [0.1, 0.2, 0.3]) / [1, 1, 2], for images resized to 8 x 8 (bicubic)"


def test_the_guide_lists_every_normalization_with_its_numbers() -> None:
    guide = (ROOT / "docs/data.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]*\| ([\d., ]+) \| ([\d., ]+) \|$", guide, re.MULTILINE)
    listed = {name: tuple(tuple(map(float, cell.split(","))) for cell in cells) for name, *cells in rows}
    assert listed == {
        name: tuple(tuple(round(value, 4) for value in values) for values in both)
        for name, both in NORMALIZATIONS.items()
    }
