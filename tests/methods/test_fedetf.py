"""The balanced loss against arithmetic written out, with its gradient; and what FedETF's switches do."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulations import make_simulation
from small import CLASSES, federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.losses import balanced_softmax, cross_entropy
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods import METHODS
from fedhead.methods.fedavgm import FedAvgM
from fedhead.methods.fedetf import FedETF
from fedhead.methods.fedprox import FedProx
from fedhead.methods.fedrod import FedRoD
from fedhead.methods.moon import Moon
from fedhead.methods.scaffold import Scaffold


def by_hand(
    logits: list[list[float]], y: list[int], n: list[float], gamma: float, absent: str
) -> tuple[float, list[list[float]]]:
    """Eq. 6 and its gradient p_c − [c = y], sample by sample in floats."""
    weights = [(1.0 if c == 0 and absent == "one" else c) ** gamma for c in n]
    total, gradient = 0.0, []
    for row, label in zip(logits, y, strict=True):
        scores = [w * math.exp(s) for w, s in zip(weights, row, strict=True)]
        share = [s / sum(scores) for s in scores]
        total -= math.log(share[label])
        gradient.append([(p - (c == label)) / len(y) for c, p in enumerate(share)])
    return total / len(y), gradient


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(any),
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from(["mask", "one"]),
)
def test_value_and_gradient(seed: int, n: list[int], gamma: float, absent: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    held = [c for c, count in enumerate(n) if count]
    logits = torch.randn(5, len(n), generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.tensor([held[i % len(held)] for i in range(5)])
    loss = balanced_softmax(logits, y, torch.ones(5), torch.tensor(n, dtype=torch.float64), gamma, absent)
    value, gradient = by_hand(logits.tolist(), y.tolist(), [float(c) for c in n], gamma, absent)
    assert loss.item() == pytest.approx(value, rel=1e-12, abs=1e-12)
    loss.backward()
    torch.testing.assert_close(logits.grad, torch.tensor(gradient, dtype=torch.float64))


def test_an_absent_class_is_masked_or_counted_once() -> None:
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    y, one, n = torch.tensor([0]), torch.ones(1), torch.tensor([4.0, 4.0, 0.0])
    assert balanced_softmax(logits, y, one, n, absent="mask").item() == pytest.approx(math.log(2))
    assert balanced_softmax(logits, y, one, n, absent="one").item() == pytest.approx(math.log(9 / 4))
    (gradient,) = torch.autograd.grad(balanced_softmax(logits, y, one, n, absent="mask"), logits)
    assert gradient[0, 2] == 0  # what a client lacks is not pushed away
    (gradient,) = torch.autograd.grad(balanced_softmax(logits, y, one, n, absent="one"), logits)
    assert gradient[0, 2] > 0


def test_a_client_of_one_class_learns_nothing_from_a_masked_softmax() -> None:
    logits = torch.randn(4, 3, requires_grad=True, generator=torch.Generator().manual_seed(0))
    y, n = torch.ones(4, dtype=torch.int64), torch.tensor([0.0, 9.0, 0.0])
    loss = balanced_softmax(logits, y, torch.ones(4), n, absent="mask")
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros(4, 3))


@pytest.mark.parametrize("method", [FedETF(), FedRoD()])
def test_a_client_of_one_class_learns_out_of_the_box(method: FedETF | FedRoD) -> None:
    """At Dirichlet(0.05) some clients of digits have one class: masked, they would only dilute the average."""
    whole = federation()
    of_class_0 = [rows[whole.train.y[rows].numpy() == 0] for rows in whole.indices]
    one_class = dataclasses.replace(whole, indices=of_class_0)
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    head = "etf" if isinstance(method, FedETF) else "linear"
    simulation = make_simulation(one_class, [network("group", head)], method, rounds=1, local=local)
    before = simulation.server["model"].clone()
    train_round(simulation, 1)
    assert float((simulation.server["model"].params - before.params).sq()) > 1e-8


def test_padding_does_not_count() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    y, n = torch.tensor([0, 1, 0, 1]), torch.tensor([3.0, 2.0, 0.0])
    whole = balanced_softmax(logits, y, torch.tensor([1.0, 1.0, 0.0, 0.0]), n)
    torch.testing.assert_close(whole, balanced_softmax(logits[:2], y[:2], torch.ones(2), n))


@pytest.mark.parametrize("method", [FedETF, FedRoD])
def test_a_negative_exponent_is_refused(method: type[FedETF] | type[FedRoD]) -> None:
    with pytest.raises(BadInput, match="gamma"):
        method(gamma=-0.1)


def _trained(method: FedETF, head: str = "etf") -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    simulation = make_simulation(federation(), [network("group", head)], method, rounds=1, local=local)
    train_round(simulation, 1)
    return simulation


def test_each_module_can_be_switched_off() -> None:
    whole = _trained(FedETF()).server["model"]
    plain = _trained(FedETF(balanced_loss=False)).server["model"]
    fixed = _trained(FedETF(learnable_temperature=False)).server["model"]
    assert abs(whole["classifier.scale"] - 1) > 1e-4
    assert fixed["classifier.scale"] == pytest.approx(1)  # a mean of ones
    assert (whole - plain).sq() > 1e-10
    logits, y, one = torch.randn(2, CLASSES), torch.tensor([0, 1]), torch.ones(2)
    torch.testing.assert_close(
        balanced_softmax(logits, y, one, torch.full((CLASSES,), 5.0)), cross_entropy(logits, y, one)
    )


@pytest.mark.parametrize("method", [FedProx(), FedAvgM(), Moon(), Scaffold()])
def test_other_methods_train_an_etf_head_and_leave_its_frame(method: FedProx) -> None:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    simulation = make_simulation(federation(), [network("batch", "etf")], method, rounds=2, local=local)
    before = simulation.server["model"]
    for number in (1, 2):
        train_round(simulation, number)
    after = simulation.server["model"]
    assert torch.equal(after["classifier.weight"], before["classifier.weight"])
    assert after["classifier.scale"] != before["classifier.scale"]
    assert (after.part("extractor") - before.part("extractor")).sq() > 1e-8


@pytest.mark.parametrize("name", ["fedetf", "fednh"])
def test_a_model_with_another_head_is_refused_with_the_fix(name: str) -> None:
    head = METHODS[name].head
    with pytest.raises(BadInput, match=rf"{name} needs a model with the {head} head.*model\.head={head}"):
        make_simulation(federation(), [network("group")], METHODS[name](), rounds=1, local=LocalTraining())
