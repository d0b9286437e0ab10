"""Resizing as a part of the transform: the numbers of Pillow, shapes that models are built for, and fingerprints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedhead as fh
from fedhead.calibration.collect import transform_fingerprint
from fedhead.data.inputs.input_spec import spec_inputs
from fedhead.recipes import inputs_record
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe


def images(count: int = 3, side: int = 16) -> torch.Tensor:
    smooth = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(smooth, size=(side, side), mode="bilinear").to(torch.uint8)


@pytest.mark.parametrize("side", [40, 9])
def test_images_are_resized_as_pillow_does(side: int) -> None:
    x = images()
    found = fh.Transform(resize=side)(x)
    for image, own in zip(x, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.BICUBIC)
        expected = torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255
        assert (own - expected).abs().max() < 1.5 / 255  # Pillow rounds to bytes, in each direction
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_augmentation_comes_before_and_normalization_after() -> None:
    x, key = images(), torch.arange(3)
    transform = fh.Transform((0.5,), (0.25,), ("flip(1.0)",), resize=24)
    expected = (fh.Transform(resize=24)(x.flip(3)) - 0.5) / 0.25
    torch.testing.assert_close(transform(x, key), expected)
    assert transform(x.to(torch.float32) / 255).shape == (3, 3, 24, 24)


def test_models_are_built_for_the_resized_shape_everywhere(tmp_path: Path) -> None:
    y = torch.arange(3)
    federation = fh.Federation.from_arrays(images(), y, clients=1, layout="nchw", resize=20)
    assert federation.input_shape == (3, 20, 20)
    assert tuple(federation.train.x.shape) == (3, 3, 16, 16)  # type: ignore[union-attr]  # one tensor
    federation.save(tmp_path / "held.npz")
    again = fh.Federation.load(tmp_path / "held.npz")
    assert again.transform == federation.transform
    assert fh.Federation.load(tmp_path / "held.npz", resize=28).input_shape == (3, 28, 28)
    record = inputs_record.describe(federation)
    assert inputs_record.inputs(record).shape == (3, 20, 20)
    assert inputs_record.blank(record, 1).transform == federation.transform
    assert spec_inputs(federation.train.x, federation.transform)["resize"] == 20
    built = build_experiment(Recipe(dataset="digits", model="mlp(hidden=[4])", resize=12))
    assert built.models[0].state_dict()["extractor.1.0.weight"].shape == (4, 144)


def test_another_size_is_another_fingerprint() -> None:
    prints = {transform_fingerprint(fh.Transform(resize=side)) for side in (None, 16, 24)}
    assert len(prints) == 3
    x, y = images(), torch.arange(3)
    model = fh.build("mlp(hidden=[4])", (3, 16, 16), 3)
    parts = [fh.statistics_of(model, x, y, transform=fh.Transform(resize=side)) for side in (None, 16)]
    with pytest.raises(fh.BadInput, match="transformed differently"):
        fh.statistics.add(parts[0], parts[1])


def test_what_is_no_image_is_not_resized() -> None:
    with pytest.raises(fh.BadInput, match=r"resize: 8 is for images, the samples have shape \(4,\)"):
        fh.Federation.from_arrays(torch.randn(4, 4), torch.arange(4) % 2, clients=2, resize=8)
    with pytest.raises(fh.BadInput, match="resize: 0 is out of range"):
        Recipe(dataset="digits", resize=0)
