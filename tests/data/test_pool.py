"""The pool: the same batches whichever way its images lie in memory."""

from __future__ import annotations

import pytest
import torch

from fedhead.data import pool as pools
from fedhead.data.federation.federation import Samples
from fedhead.data.pool import Pool
from fedhead.data.transforms.augment import Transform


def images(channels: int = 3) -> Samples:
    x = torch.randint(0, 256, (20, channels, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Samples(x, torch.arange(20) % 4)


@pytest.mark.parametrize("augment", ["none", "cifar", "cifar100", "simclr"])
@pytest.mark.parametrize("normalize", ["half", "cifar10"])
def test_turned_images_give_the_same_batches_to_the_bit(augment: str, normalize: str) -> None:
    pool = Pool(images(), Transform.named(augment, normalize))
    turned = pool.channels_last()
    index, key = torch.tensor([7, 3, 3, 19]), torch.tensor([1, 2, 3, 4])
    for keys in (key, None):
        for mine, other in zip(
            pool.batch(index, torch.ones(4), keys), turned.batch(index, torch.ones(4), keys), strict=True
        ):
            assert torch.equal(mine, other)
    assert turned.batch(index, torch.ones(4)).x.is_contiguous(memory_format=torch.channels_last)
    both = index.reshape(2, 2)
    assert torch.equal(turned.batch(both, torch.ones(2, 2)).x.flatten(0, 1), pool.view(index, None))


def test_images_are_turned_once_and_stay_as_they_were() -> None:
    samples = images()
    before = samples.x.clone()
    pool = Pool(samples, Transform.named("none", "cifar10"))
    assert pool.channels_last() is pool.channels_last()
    pool.channels_last().view(torch.arange(5), None)
    assert torch.equal(samples.x, before)
    assert samples.x.is_contiguous()


def test_what_is_no_image_or_too_large_is_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Pool(Samples(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)), Transform())
    assert features.channels_last() is features
    monkeypatch.setattr(pools, "MAX_CONVERTED", 100)
    large = Pool(images(), Transform())
    assert large.channels_last() is large


def test_floats_of_the_user_are_not_written_over() -> None:
    x = torch.rand(4, 3, 8, 8)
    before = x.clone()
    Transform.named("none", "cifar10")(x)
    Transform.named("cifar", "half")(x, torch.arange(4))
    assert torch.equal(x, before)


def test_the_size_of_a_sample_is_that_of_a_models_input() -> None:
    held, cpu = images(), torch.device("cpu")
    height, width = held.x.shape[-2:]
    plain, resized = Transform.named("none", "half"), Transform.named("none", "half").replace(resize=12)
    assert Pool(held, plain, cpu, torch.float32).sample_nbytes == 4 * 3 * height * width
    assert Pool(held, resized, cpu, torch.float32).sample_nbytes == 4 * 3 * 12 * 12
    assert Pool(held, plain, cpu, torch.float32).take(torch.zeros(0, dtype=torch.int64)).sample_nbytes == 0
