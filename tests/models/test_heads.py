"""The heads' geometry: simplex frames of many sizes, unit rows, prototypes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedhead.core.system.errors import BadInput
from fedhead.models import build
from fedhead.models.heads import HEADS, ETFHead, NormalizedLinear, PrototypeHead, etf
from fedhead.models.registry import with_head


@given(classes=st.integers(2, 40), extra=st.integers(-1, 60), key=st.integers(0, 2**62))
def test_etf_is_a_simplex(classes: int, extra: int, key: int) -> None:
    """Unit norms, pairwise cosines -1/(C-1), vectors that add up to 0 (Eq. 4), for d from C-1 up."""
    frame = etf(classes, classes + extra, key).double()
    gram = frame @ frame.T
    wanted = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert frame.shape == (classes, classes + extra)
    assert (gram - wanted).abs().max() < 1e-6
    assert frame.sum(dim=0).abs().max() < 1e-6


@pytest.mark.parametrize(("classes", "dim"), [(100, 99), (100, 100), (200, 199), (10, 2048)])
def test_etf_of_the_papers_sizes(classes: int, dim: int) -> None:
    frame = etf(classes, dim, 1).double()
    gram = frame @ frame.T
    off = gram[~torch.eye(classes, dtype=torch.bool)]
    assert (gram.diagonal() - 1).abs().max() < 1e-6
    assert (off + 1 / (classes - 1)).abs().max() < 1e-6


def test_etf_is_equation_three() -> None:
    """With d >= C there is U with orthonormal columns such that V = sqrt(C/(C-1)) U (I - 11'/C)."""
    classes, dim = 6, 9
    v = etf(classes, dim, 4).double().T  # d x C, as in the paper
    scaled = v * math.sqrt((classes - 1) / classes)
    # V spans C-1 dimensions; U sends the all-ones direction to any unit vector orthogonal to them
    left = torch.linalg.svd(v).U[:, classes - 1]
    u = scaled + left[:, None] @ torch.full((1, classes), 1 / math.sqrt(classes), dtype=torch.float64)
    center = torch.eye(classes, dtype=torch.float64) - 1 / classes
    torch.testing.assert_close(u.T @ u, torch.eye(classes, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(math.sqrt(classes / (classes - 1)) * u @ center, v, rtol=0, atol=1e-6)


def test_etf_rotation_is_by_key() -> None:
    assert torch.equal(etf(5, 8, 1), etf(5, 8, 1))
    assert not torch.allclose(etf(5, 8, 1), etf(5, 8, 2))


@pytest.mark.parametrize(("classes", "dim"), [(10, 8), (3, 1), (100, 64)])
def test_etf_of_too_few_dimensions_is_refused(classes: int, dim: int) -> None:
    with pytest.raises(BadInput, match=rf"{classes} classes needs at least {classes - 1} dimensions.*not {dim}"):
        etf(classes, dim, 0)
    with pytest.raises(BadInput, match="needs at least"):
        build("resnet20", (3, 32, 32), classes, head="etf", dim=dim)


def test_etf_head_scales_cosines() -> None:
    head = ETFHead(5, 4, key=2, scale=3.0).double()
    z = torch.randn(7, 5, dtype=torch.float64)
    cosines = torch.stack([F.cosine_similarity(z, v[None]) for v in head.weight], dim=1)
    torch.testing.assert_close(head(z), 3.0 * cosines)
    torch.testing.assert_close(head(10 * z), head(z))
    head(z).sum().backward()
    torch.testing.assert_close(head.scale.grad, cosines.sum().detach())


def test_etf_model_has_a_projection_and_a_fixed_frame() -> None:
    model = build("resnet20", (3, 32, 32), 10, head="etf", seed=1)
    assert model.fixed == {"classifier.weight"}
    assert (model.projection.in_features, model.projection.out_features) == (64, 10)
    assert model.projection.bias is not None
    assert model.classifier.scale.item() == 1.0
    assert model.features == 10
    assert build("resnet20", (3, 32, 32), 10, head="etf", dim=9).features == 9
    # SimpleCNN's own projection makes way; a feature layer's ReLU stays
    assert build("simplecnn", (3, 32, 32), 10, head="etf").projection.in_features == 84
    wide = build("digitscnn", (1, 8, 8), 10, head="etf", feature_layer=32)
    out = wide(torch.randn(3, 1, 8, 8))
    torch.testing.assert_close(out.z, wide.projection[1](out.h.relu()))


def test_etf_head_survives_a_zero_feature() -> None:
    head = ETFHead(4, 4)
    z = torch.zeros(1, 4, requires_grad=True)
    head(z).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_normalized_head_ignores_weight_norms() -> None:
    head = NormalizedLinear(6, 3).double()
    z = torch.randn(5, 6, dtype=torch.float64)
    by_hand = torch.stack([(z * w).sum(dim=1) / w.square().sum().sqrt() for w in head.weight], dim=1)
    torch.testing.assert_close(head(z), by_hand)
    torch.testing.assert_close(head(2 * z), 2 * head(z))  # the feature keeps its norm
    with torch.no_grad():
        head.weight[1] *= 50
    torch.testing.assert_close(head(z), by_hand)
    assert head.bias is None
    assert build("mlp", (4,), 3, head="normalized").fixed == frozenset()


@pytest.mark.parametrize(("features", "classes"), [(16, 10), (10, 10), (4, 10)])
def test_prototypes_start_apart_and_have_unit_norm(features: int, classes: int) -> None:
    head = PrototypeHead(features, classes, scale=20.0)
    gram = head.weight @ head.weight.T
    torch.testing.assert_close(gram.diagonal(), torch.ones(classes))
    if features >= classes:
        torch.testing.assert_close(gram, torch.eye(classes), rtol=0, atol=1e-5)
    z = torch.randn(3, features)
    assert head(z).abs().max() <= 20.0 + 1e-4
    torch.testing.assert_close(head(5 * z), head(z))


def test_prototype_model_fixes_its_prototypes() -> None:
    model = build("digitscnn", (1, 8, 8), 10, head="prototype", scale=20.0)
    assert model.fixed == {"classifier.weight"}
    assert model.classifier.scale.item() == 20.0


@pytest.mark.parametrize("head", HEADS)
def test_another_head_on_a_built_model(head: str) -> None:
    """`with_head` keeps the extractor's function, gives what the head's kind asks, and leaves the model alone."""
    model = build("simplecnn", (3, 32, 32), 10).eval()
    other = with_head(model, head).eval()
    x = torch.rand(2, 3, 32, 32)
    assert other.head == head
    assert model.head == "linear"
    assert torch.equal(other(x).h, model(x).z)
    assert other(x).logits.shape == (2, 10)
    assert other.features == (10 if head == "etf" else 256)


def test_an_etf_without_its_projection_has_the_features_dimension() -> None:
    """FedETF's ablation without the projection layer."""
    model = build("resnet20", (3, 32, 32), 10, head="etf", projected=False)
    assert model.features == 64
    assert isinstance(model.projection, torch.nn.Identity)
    with pytest.raises(BadInput, match="at least 99 dimensions"):
        build("resnet20", (3, 32, 32), 100, head="etf", projected=False)
