"""Padding rows change nothing: a loss that counts them is refused, one value per sample is weighed by the engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from simulations import make_simulation
from small import CLASSES, SIZES, federation, network
from torch import Tensor, nn

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import cross_entropy
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Weights
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.models.wrap import split
from fedhead.testing import CheckFailed, check_model

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05))


@dataclass(frozen=True)
class PerSample(Method):
    """FedAvg with one loss value per sample."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return F.cross_entropy(client.apply(w, batch.x).logits, batch.y, reduction="none")


@dataclass(frozen=True)
class PlainMean(Method):
    """FedAvg as a newcomer writes it."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return F.cross_entropy(client.apply(w, batch.x).logits, batch.y)


@dataclass(frozen=True)
class LatePlainMean(Method):
    """The second phase, which begins in round 2, counts its padding."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.loss), Phase(self.plain, first_round=2))

    def plain(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return F.cross_entropy(client.apply(w, batch.x).logits, batch.y)


@dataclass(frozen=True)
class CountsFeatures(Method):
    """The cross entropy is right, a small term on the features is not."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return super().loss(w, batch, client) + 0.1 * client.apply(w, batch.x).z.square().mean()


@dataclass(frozen=True)
class Matrix(Method):
    """One value per sample and class."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return client.apply(w, batch.x).logits.square()


def simulate(
    method: Method, executor: Executor, norm: str = "group", local: LocalTraining = LOCAL, fed: Federation | None = None
) -> Simulation:
    simulation = make_simulation(
        fed or federation(), [network(norm)], method, rounds=2, local=local, dtype=torch.float64
    )
    for number in (1, 2):
        train_round(simulation.using(executor), number)
    return simulation


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
def test_one_value_per_sample_is_fedavg(executor: Executor, norm: str) -> None:
    ours, fedavg = simulate(PerSample(), executor, norm), simulate(Method(), executor, norm)
    for name, t in fedavg.server["model"].items():
        torch.testing.assert_close(ours.server["model"][name], t, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_plain_mean_is_refused_before_anything_is_trained(norm: str) -> None:
    with pytest.raises(BadInput, match=r"^PlainMean\.loss: .* padding rows .*: use batch\.weight, .* one value per sa"):
        make_simulation(
            federation(), [network(norm)], PlainMean(), rounds=1, local=LOCAL, dtype=torch.float64
        ).jobs_of_round(1)


def test_steps_that_end_with_a_full_batch_may_have_padding_before_it() -> None:
    """Client 1 has five samples: a full batch, a padded one, and a full one again."""
    local = LocalTraining(steps=3, batch_size=4, optimizer=LOCAL.optimizer)
    simulation = make_simulation(
        federation(), [network("group")], PlainMean(), rounds=1, local=local, dtype=torch.float64
    )
    with pytest.raises(BadInput, match=r"^PlainMean\.loss: .* padding rows"):
        simulation.jobs(simulation.experiment.method, simulation.server, simulation.states, [1], 1)


def test_a_small_term_that_counts_padding_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^CountsFeatures\.loss: "):
        simulate(CountsFeatures(), Loop())


def test_a_phase_is_checked_when_it_begins() -> None:
    simulation = make_simulation(federation(), [network("group")], LatePlainMean(), rounds=2, local=LOCAL)
    train_round(simulation.using(Stack()), 1)
    with pytest.raises(BadInput, match=r"^LatePlainMean\.plain: "):
        train_round(simulation.using(Stack()), 2)


def test_without_partial_batches_a_plain_mean_is_right() -> None:
    """Each client has two or more full batches, or leaves its partial one out."""
    local = dataclasses.replace(LOCAL, drop_last=True, batch_size=3)
    assert all(size == 0 or size >= 3 for size in SIZES)
    ours, fedavg = simulate(PlainMean(), Loop(), local=local), simulate(Method(), Loop(), local=local)
    for name, t in fedavg.server["model"].items():
        torch.testing.assert_close(ours.server["model"][name], t, atol=1e-12, rtol=0)


def test_the_check_changes_no_number_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhead.engine.clients import padding_check

    calls = []
    honest = padding_check.check
    monkeypatch.setattr(padding_check, "check", lambda *args: (calls.append(args), honest(*args)))
    checked = simulate(Method(), Loop(), "batch")
    assert len(calls) == 1
    monkeypatch.setattr(padding_check, "check", lambda *args: None)
    unchecked = simulate(Method(), Loop(), "batch")
    for name, t in unchecked.server.leaves().items():
        assert torch.equal(checked.server.leaves()[name], t)


class Mixes(nn.Module):
    """Model that mixes the rows of its batch in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.InstanceNorm2d(4, track_running_stats=True))
        if kind != "running statistics":
            self.body[1] = nn.BatchNorm2d(4)
        self.kind, self.fc = kind, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).relu().mean((2, 3))
        if self.kind == "always" or (self.kind == "own mean" and self.training):
            h = h - h.mean(0)
        if self.kind == "fixed":
            h = h + 0.1 * nn.functional.batch_norm(h, None, None, training=True) if self.training else h
        return self.fc(h)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("own mean", "its value changes"),
        ("always", "its value changes"),
        ("running statistics", "the model's running statistics change"),
    ],
)
def test_a_model_that_mixes_rows_itself_is_refused(kind: str, what: str) -> None:
    model = split(Mixes(kind), classifier="fc")
    simulation = make_simulation(federation(), [model], Method(), rounds=1, local=LOCAL, dtype=torch.float64)
    with pytest.raises(BadInput, match=rf"^Method\.loss: {what}.* mixes the rows of its batch needs nn\.BatchNorm"):
        train_round(simulation.using(Loop()), 1)
    with pytest.raises(CheckFailed, match=r"the (rows|others) of its batch"):
        check_model(model)


def test_batchnorm_leaves_padding_out_so_its_model_is_accepted() -> None:
    check_model(split(Mixes("fixed"), classifier="fc"))


@dataclass(frozen=True)
class TwoViews(Method):
    """Both views of a sample in one pass."""

    weighed: bool

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        x = torch.cat([batch.x, client.view(batch)])
        weight = torch.cat([batch.weight, batch.weight])
        logits = client.apply(w, x, weight=weight if self.weighed else None).logits
        return cross_entropy(logits, torch.cat([batch.y, batch.y]), weight)


def test_the_weights_of_other_rows_than_those_of_the_batch_are_given() -> None:
    with pytest.raises(BadInput, match=r"^client\.apply got 8 rows in a batch of 4, .*weight=torch\.cat"):
        simulate(TwoViews(weighed=False), Loop(), "batch")
    loop, stack = (
        simulate(TwoViews(weighed=True), executor, "batch").server["model"] for executor in (Loop(), Stack())
    )
    torch.testing.assert_close(loop, stack, atol=1e-10, rtol=0)
    simulate(TwoViews(weighed=False), Loop(), "group")  # no layer asks


def test_a_lone_sample_without_a_variance_is_trained_alike_by_all_executors() -> None:
    """Clients 0 and 1 end their epochs with one sample; a convolution's channel has a variance, a vector has none."""
    flat = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    results = []
    for executor in (Loop(), Stack()):
        settings = {"rounds": 1, "local": LOCAL, "dtype": torch.float64}
        simulation = make_simulation(federation(), [split(flat, classifier="3")], Method(), **settings)
        train_round(simulation.using(executor), 1)
        results.append(simulation.server["model"])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(
        BadInput, match=rf"^Matrix\.loss returned a tensor of shape \[\d, {CLASSES}\]: .* of shape \[\d\]"
    ):
        simulate(Matrix(), Loop())
