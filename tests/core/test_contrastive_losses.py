"""The supervised contrastive and the distillation loss against independent computations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap
from torch.nn import functional as F

from fedhead.core.training.losses import distillation, supervised_contrastive


def by_hand(views: torch.Tensor, labels: list[int], temperature: float) -> float:
    """Khosla et al.'s Eq. 2, one anchor and one exponential after another; `views` are all views in a row."""
    total = 0.0
    for i in range(len(views)):
        others = [a for a in range(len(views)) if a != i]
        denominator = sum(math.exp(float(views[i] @ views[a]) / temperature) for a in others)
        positives = [p for p in others if labels[p] == labels[i]]
        total -= sum(
            math.log(math.exp(float(views[i] @ views[p]) / temperature) / denominator) for p in positives
        ) / len(positives)
    return total / len(views)


def draw(seed: int, samples: int, classes: int, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    first, second = (F.normalize(torch.randn(samples, dim, generator=g, dtype=torch.float64), dim=1) for _ in range(2))
    return first, second, torch.randint(classes, (samples,), generator=g)


@given(st.integers(0, 99), st.integers(1, 7), st.integers(1, 4), st.sampled_from([0.07, 0.5, 100.0]))
def test_supervised_contrastive_is_eq_2(seed: int, samples: int, classes: int, temperature: float) -> None:
    first, second, y = draw(seed, samples, classes)
    got = supervised_contrastive(first, second, y, torch.ones(samples), temperature)
    expected = by_hand(torch.cat([first, second]), [*y.tolist(), *y.tolist()], temperature)
    assert float(got) == pytest.approx(expected, abs=1e-9, rel=1e-9)


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 5))
def test_padding_changes_neither_value_nor_gradient(seed: int, samples: int, padding: int) -> None:
    first, second, y = draw(seed, samples + padding, 3)
    weight = (torch.arange(samples + padding) < samples).double()
    a, b = first.clone().requires_grad_(), first[:samples].clone().requires_grad_()
    padded = supervised_contrastive(a, second, y, weight)
    plain = supervised_contrastive(b, second[:samples], y[:samples], torch.ones(samples))
    torch.testing.assert_close(padded, plain)
    padded.backward()
    plain.backward()
    torch.testing.assert_close(a.grad[:samples], b.grad)
    assert torch.equal(a.grad[samples:], torch.zeros_like(a.grad[samples:]))


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (6, 1), (6, 6)])
def test_single_samples_one_class_and_huge_features_stay_finite(samples: int, classes: int, scale: float) -> None:
    first, second, _ = draw(3, samples, 1)
    y = torch.arange(samples) % classes
    z = (first.float() * scale).requires_grad_()
    loss = supervised_contrastive(z, second.float() * scale, y, torch.ones(samples))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    if samples == 1:  # the only other view is the positive itself: log 1
        assert float(loss.detach()) == 0.0


def test_a_batch_that_is_all_padding_gives_zero() -> None:
    first, second, y = draw(0, 4, 2)
    first.requires_grad_()
    loss = supervised_contrastive(first, second, y, torch.zeros(4))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not first.grad.any()


def test_the_base_temperature_scales_as_in_the_public_code() -> None:
    first, second, y = draw(1, 5, 2)
    one = torch.ones(5)
    torch.testing.assert_close(
        supervised_contrastive(first, second, y, one, 100.0, base=0.07),
        supervised_contrastive(first, second, y, one, 100.0) * (100.0 / 0.07),
    )


def test_supervised_contrastive_maps_over_clients() -> None:
    batches = [draw(seed, 4, 2) for seed in range(3)]
    one = torch.ones(3, 4, dtype=torch.float64)
    stacked = vmap(supervised_contrastive)(*(torch.stack(t) for t in zip(*batches, strict=True)), one)
    single = torch.stack([supervised_contrastive(*batch, one[0]) for batch in batches])
    torch.testing.assert_close(stacked, single)


@given(st.integers(0, 99), st.integers(1, 6), st.sampled_from([1.0, 10.0]))
def test_distillation_is_the_divergence_at_its_temperature(seed: int, samples: int, temperature: float) -> None:
    g = torch.Generator().manual_seed(seed)
    logits, teacher = torch.randn(2, samples + 2, 4, generator=g, dtype=torch.float64) * 3
    target = torch.softmax(teacher / temperature, dim=1)
    weight = (torch.arange(samples + 2) < samples).double()
    q = torch.exp(logits / temperature) / torch.exp(logits / temperature).sum(1, keepdim=True)
    expected = sum(float((target[i] * (target[i] / q[i]).log()).sum()) for i in range(samples)) / samples
    assert float(distillation(logits, target, weight, temperature)) == pytest.approx(expected, abs=1e-12)
    assert float(distillation(teacher, target, weight, temperature)) == pytest.approx(0.0, abs=1e-12)


def test_distillation_takes_targets_with_zeros() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    loss = distillation(logits, torch.tensor([[0.0, 1.0, 0.0]]), torch.ones(1), 1.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(3))
    assert torch.isfinite(logits.grad).all()
