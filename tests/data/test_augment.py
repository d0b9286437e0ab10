"""Transforms against slow, plain implementations, one sample at a time; and under vmap over clients."""

import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.data.transforms import color, geometry
from fedhead.data.transforms.augment import AUGMENTATIONS, STEPS, Transform, steps

N = 24


@pytest.fixture
def images():
    return torch.randint(0, 256, (N, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def keys():
    return torch.tensor([random.key(5, "test", i) for i in range(N)])


def plain(augment, dtype=torch.float32):
    return Transform((), (), steps(augment), dtype)


def moved(x, step, key):
    """A step that moves pixels, as bytes."""
    out = plain(step, torch.float64)(x, key) * 255
    assert torch.equal(out.round(), out.round().clamp(0, 255))
    return out.round().to(torch.uint8).numpy()


@pytest.mark.parametrize(("step", "mode"), [("crop(3)", "constant"), ("crop-reflect(3)", "reflect")])
def test_crop_pads_and_cuts(images, keys, step, mode):
    draw = random.uniform(random.fold_in(keys, 0), 2).numpy()
    out = moved(images, step, keys)
    starts = set()
    for i in range(N):
        padded = np.pad(images[i].numpy(), ((0, 0), (3, 3), (3, 3)), mode=mode)
        top, left = (int(d * 7) for d in draw[i])
        starts |= {top, left}
        assert np.array_equal(out[i], padded[:, top : top + 12, left : left + 10])
    assert starts == set(range(7))


def test_flip_mirrors_about_half(images, keys):
    out = moved(images, "flip", keys)
    mirrored = [np.array_equal(out[i], images[i].numpy()[:, :, ::-1]) for i in range(N)]
    same = [np.array_equal(out[i], images[i].numpy()) for i in range(N)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 6 <= sum(mirrored) <= 18
    assert np.array_equal(moved(images, "flip(1)", keys), images.numpy()[:, :, :, ::-1])


def test_rotation_takes_the_nearest_pixel(images, keys):
    out = moved(images, "rotate(40)", keys)
    angles = (random.uniform(random.fold_in(keys, 0)) * 2 - 1).double() * math.radians(40)
    for i in range(4):
        c, s = math.cos(angles[i]), math.sin(angles[i])
        for row in range(12):
            for col in range(10):
                y, x = row - 5.5, col - 4.5
                from_row, from_col = y * c + x * s + 5.5, x * c - y * s + 4.5
                if min(abs(from_row % 1 - 0.5), abs(from_col % 1 - 0.5)) < 1e-4:
                    continue  # on the border of two pixels: rounding decides
                r, k = round(from_row), round(from_col)
                seen = 0 <= r < 12 and 0 <= k < 10
                expected = images[i, :, r, k] if seen else torch.zeros(3)
                assert np.array_equal(out[i, :, row, col], expected)


def test_rotation_turns_as_pillow_does(keys):
    """Sign and center: a quarter turn, by Pillow, is the same picture."""
    square = torch.randint(0, 256, (1, 1, 9, 9), dtype=torch.uint8)
    grid = geometry.Grid.identity(square)
    half = torch.tensor([0])
    turn = float((random.uniform(half) * 2 - 1).item())
    out = geometry.rotate(grid, half, 90 / turn).gather(square)[0, 0].numpy()
    assert np.array_equal(out, np.asarray(Image.fromarray(square[0, 0].numpy()).rotate(90)))


def test_moves_compose_in_order(images, keys):
    """Steps joined in one gather give what they give one after another."""
    joined = moved(images, "crop(4)+flip+rotate(15)", keys)
    one = images
    for number, step in enumerate(("crop", "flip", "rotate")):
        own, grid = random.fold_in(keys, number), geometry.Grid.identity(one)
        grid = {
            "crop": lambda g, k: geometry.crop(g, k, 4, reflect=False),
            "flip": lambda g, k: geometry.flip(g, k, 0.5),
            "rotate": lambda g, k: geometry.rotate(g, k, 15),
        }[step](grid, own)
        one = grid.gather(one)
    assert np.array_equal(joined, one.numpy())


def test_resized_crop_is_pillows_bilinear(keys):
    x = torch.rand(N, 1, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    out = geometry.resized_crop(x, keys, 0.2)
    draw = random.uniform(keys, 10, 4).double()
    areas = []
    for i in range(N):
        for t in range(10):
            area = (0.2 + 0.8 * draw[i, t, 0]) * 256
            ratio = math.exp((draw[i, t, 1] * 2 - 1) * math.log(4 / 3))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if h <= 16 and w <= 16:
                break
        else:
            h = w = 16
        areas.append(h * w / 256)
        top, left = int(draw[i, t, 2] * (16 - h + 1)), int(draw[i, t, 3] * (16 - w + 1))
        part = Image.fromarray(x[i, 0, top : top + h, left : left + w].float().numpy())
        expected = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR))
        assert out[i, 0].numpy() == pytest.approx(expected, abs=1e-5)
    assert min(areas) < 0.4
    assert max(areas) > 0.8


def test_hue_turns_as_colorsys_does():
    x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[0] = x[0, :1]  # gray has no hue
    x[1, :, 0, 0] = torch.tensor([1.0, 0.0, 0.0])
    turn = torch.tensor([0.1, -0.1, 0.05, 0.5, -0.3, 0.0], dtype=torch.float64)
    out = color.shift_hue(x, turn)
    for i in range(6):
        for r in range(4):
            for c in range(4):
                h, s, v = colorsys.rgb_to_hsv(*x[i, :, r, c].tolist())
                expected = colorsys.hsv_to_rgb((h + turn[i].item()) % 1, s, v)
                assert out[i, :, r, c].tolist() == pytest.approx(expected, abs=1e-12)


def test_jitter_applies_the_four_changes_in_their_drawn_order(keys):
    x = torch.rand(N, 3, 5, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    out = color.jitter(x, keys, 0.8)
    draw = random.uniform(keys, 9).double()
    orders = set()
    for i in range(N):
        own = x[i]
        order = tuple(torch.argsort(draw[i, 4:8]).tolist())  # brightness, contrast, saturation, hue
        if draw[i, 8] >= 0.8:
            assert torch.equal(out[i], own)
            continue
        orders.add(order)
        for change in order:
            signed = 2 * draw[i, change] - 1
            gray = 0.299 * own[0] + 0.587 * own[1] + 0.114 * own[2]
            if change == 0:
                own = (own * (1 + 0.4 * signed)).clamp(0, 1)
            elif change == 1:
                own = (gray.mean() + (1 + 0.4 * signed) * (own - gray.mean())).clamp(0, 1)
            elif change == 2:
                own = (gray + (1 + 0.4 * signed) * (own - gray)).clamp(0, 1)
            else:
                own = color.shift_hue(own[None], (0.1 * signed)[None])[0]
        assert torch.allclose(out[i], own, atol=1e-12)
    assert len(orders) > 8


def test_grayscale_with_its_probability(keys):
    x = torch.rand(N, 3, 4, 4)
    out = color.grayscale(x, keys, 0.5)
    gray = (out[:, 0] == out[:, 1]).flatten(1).all(dim=1)
    assert torch.equal(gray, random.uniform(keys) < 0.5)
    assert torch.allclose(out[gray][:, 0], color.luma(x)[gray][:, 0])
    assert torch.equal(out[~gray], x[~gray])


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_of_clients_gives_what_a_loop_gives(images, keys, name, dtype):
    transform = Transform((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), steps(name), dtype)
    stacked_x, stacked_keys = images.reshape(4, 6, 3, 12, 10), keys.reshape(4, 6)
    stacked = torch.func.vmap(transform)(stacked_x, stacked_keys)
    looped = torch.stack([transform(x, k) for x, k in zip(stacked_x, stacked_keys, strict=True)])
    assert stacked.dtype == dtype
    assert torch.allclose(stacked, looped, atol=1e-6 if dtype == torch.float32 else 1e-14)
    assert torch.equal(transform(images, keys), looped.reshape(images.shape))  # a sample's draw is its own
    assert torch.isfinite(stacked).all()


def test_evaluation_only_normalizes(images):
    transform = Transform((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), steps("simclr"))
    expected = (images / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[
        :, None, None
    ]
    assert torch.allclose(transform(images), expected, atol=1e-6)


def test_gray_images_and_features():
    gray = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    for name in AUGMENTATIONS:
        out = Transform.named(name, "half")(gray, torch.arange(4))
        assert out.shape == gray.shape
        assert out.min() >= -1
        assert out.max() <= 1 + 1e-6
    features = torch.randn(5, 7)
    assert torch.equal(Transform()(features, torch.arange(5)), features)


def test_float_images_are_not_scaled_again(keys):
    x = torch.rand(N, 3, 8, 8)
    out = plain("flip(1)")(x, keys)
    assert torch.equal(out, x.flip(3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Transform((0.5,), ()), "1 means but 0"),
        (lambda: Transform((0.5,), (0.0,)), "std: 0.0 is out of range, it must be above 0"),
        (lambda: Transform.named("cifra"), "did you mean 'cifar'"),
        (lambda: Transform.named("rotate(x)"), "unknown augmentation"),
        (lambda: Transform.named("none", "halve"), "did you mean 'half'"),
        (lambda: Transform.named("flip").check((7,)), "is for images"),
        (lambda: Transform.named("none", "cifar10").check((1, 28, 28)), "3 channels"),
        (lambda: Transform.named("crop-reflect(9)").check((3, 8, 8)), "too small to reflect"),
    ],
)
def test_wrong_transforms_are_refused(make, says):
    with pytest.raises(BadInput, match=says):
        make()


def test_every_step_has_a_default_number():
    for step in STEPS:
        assert plain(step)(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.arange(2)).shape == (2, 3, 16, 16)


def test_replace_keeps_what_is_not_named():
    transform = Transform.named("cifar", "cifar10")
    other = transform.replace(augment="none")
    assert (other.mean, other.augment) == (transform.mean, ())
    assert transform.replace(normalize="half").augment == transform.augment


def test_folding_a_number_or_a_tensor_gives_one_key(keys):
    for number in (0, 1, 7, 2**40):
        assert torch.equal(random.fold_in(keys, number), random.fold_in(keys, torch.tensor(number)))
