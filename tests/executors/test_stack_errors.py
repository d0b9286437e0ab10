"""Errors of code that a stack can't run: one line with the user's line, the reason and the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from small import CLASSES, federation, network
from torch import Tensor, nn

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.task import Task
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.stack_errors import CannotStack, explain


class Net(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 8))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.act(self.body(x)))  # type: ignore[no-any-return]


def branch_on_item(z: Tensor) -> Tensor:
    return z if z.sum().item() < 1e9 else 2 * z


def branch_on_tensor(z: Tensor) -> Tensor:
    return z if z.sum() < 1e9 else 2 * z


def recur(z: Tensor) -> Tensor:
    state, weights = (z[None], z[None]), [torch.zeros(32, 8)] * 2
    return torch.lstm(z[:, None], state, weights, False, 1, 0.0, False, False, True)[0][:, 0]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (branch_on_item, "reads a number out of a tensor"),
        (branch_on_tensor, "reads a number out of a tensor"),
        (recur, "uses an operation that PyTorch can't vectorize (RuntimeError: Batching rule not"),
    ],
)
def test_a_model_that_cannot_be_stacked_is_told_so(act: Callable[[Tensor], Tensor], words: str) -> None:
    model = fh.split(Net(act))
    with pytest.raises(CannotStack) as caught:
        fh.run(federation(), model, rounds=1, executor="stack")
    assert str(caught.value).startswith(f"executor stack: {act.__name__} (test_stack_errors.py, line ")
    assert words in str(caught.value)
    assert "use executor=loop" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, fh.BadInput)
    fh.run(federation(), model, rounds=1, executor="loop")


def draw(z: Tensor) -> Tensor:
    return z + 0 * torch.rand_like(z)


def clip(z: Tensor) -> Tensor:
    return z.copy_(z.clamp(-1, 1))


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_a_model_that_draws_is_refused_by_every_executor(executor: str) -> None:
    with pytest.raises(fh.BadInput, match=r"draws from torch's global generator.*nn\.Dropout, which draws") as caught:
        fh.run(federation(), fh.split(Net(draw)), rounds=1, executor=executor)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("act", "words"), [(draw, "draws random numbers itself"), (clip, "changes a tensor in place")])
def test_what_the_check_of_hooks_lets_pass_is_explained(act: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.func.vmap(act)(torch.zeros(4).expand(2, 4))  # one and the same tensor for both clients
    said = str(explain(caught.value))
    assert said.startswith(f"executor stack: {act.__name__} (test_stack_errors.py, line ")
    assert words in said
    assert "use executor=loop" in said
    assert "\n" not in said


@dataclass(frozen=True)
class Looking(fh.Method):
    """FedAvg that looks at its loss."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        value = super().loss(w, batch, client)
        return value if float(value.detach()) < 1e9 else 2 * value


def test_a_method_that_cannot_be_stacked_is_told_so_and_auto_takes_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CannotStack, match=r"stack: Looking\.loss \(test_stack_errors\.py, line \d+\) reads a number"):
        fh.run(federation(), network(), Looking(), rounds=1, executor="stack")
    assert fh.run(federation(), network(), Looking(), rounds=1).executor == "loop"
    assert "the stack executor can't take this model" in caplog.text


def test_other_errors_are_left_alone() -> None:
    assert explain(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


class Personal(fh.Method):
    """The server sends each client something else."""

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        return Tree(scale=torch.ones(1, dtype=torch.float64 if client else torch.float32))


class Longer(Personal):
    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        return Tree(scale=torch.ones(1 + client))


class Named(Personal):
    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        return Tree({f"scale{client}": torch.ones(1)})


@pytest.mark.parametrize(("kind", "odd"), [(Personal, "torch.float"), (Longer, "of shape"), (Named, "no 'scale")])
def test_clients_that_receive_other_forms_are_not_stacked(kind: type[Personal], odd: str) -> None:
    with pytest.raises(CannotStack, match=f"{kind.__name__}: client . receives .*{odd}.*use executor=loop"):
        fh.run(federation(), network(), kind(), rounds=1, executor="stack")
    fh.run(federation(), network(), kind(), rounds=1, executor="loop")


class SendsNumber(fh.Method):
    """Method that sends a value that is no tensor."""

    def finish(self, w: Weights, client: Client) -> fh.Reply:
        return fh.Reply(send=fh.Tree(model=w, loss=0.5), keep=fh.Tree())


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_a_reply_holds_only_tensors(executor: str) -> None:
    with pytest.raises(fh.BadInput, match=r"SendsNumber\.finish returned a float under 'loss': a tree holds tensors"):
        fh.run(federation(), network(), SendsNumber(), rounds=1, executor=executor)


class StartsFromDict(fh.Method):
    """A plain dictionary in place of weights."""

    def start(self, client: Client) -> Weights:
        return dict(client.received["model"])  # type: ignore[return-value]  # the mistake under test


class StartsFromNumber(fh.Method):
    """A number among the weights."""

    def start(self, client: Client) -> Weights:
        return super().start(client).replace({"classifier.bias": 0.0})


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (StartsFromDict, "a dict: return the weights"),
        (StartsFromNumber, "a float under 'classifier.bias': a tree holds tensors"),
    ],
)
def test_a_method_starts_from_weights(kind: type[fh.Method], what: str, executor: str) -> None:
    with pytest.raises(fh.BadInput, match=rf"{kind.__name__}\.start returned {what}"):
        fh.run(federation(), network(), kind(), rounds=1, executor=executor)


class AddsInPlace(fh.Method):
    """Numbers of a client are added to a constant in place."""

    def finish(self, w: Weights, client: Client) -> fh.Reply:
        total = torch.zeros(CLASSES)
        total += client.counts
        return super().finish(w, client)


def test_a_constant_that_is_changed_in_place_is_named() -> None:
    with pytest.raises(CannotStack, match=r"AddsInPlace\.finish \(test_stack_errors\.py.* changes a tensor in place"):
        fh.run(federation(), network(), AddsInPlace(), rounds=1, executor="stack")
    fh.run(federation(), network(), AddsInPlace(), rounds=1, executor="loop")


class ClipsInPlace(fh.Method):
    """Clips the weights that it trains in place; before the first step all clients have the server's."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        with torch.no_grad():
            w["classifier.weight"].copy_(w["classifier.weight"].clamp(-1, 1))
        return super().loss(w, batch, client)


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_weights_that_are_changed_in_place_are_named(executor: str) -> None:
    said = r"ClipsInPlace writes into client\.received\['model'\]\['classifier\.weight'\],.*compute a new tensor"
    with pytest.raises(fh.BadInput, match=said):
        fh.run(federation(), network(), ClipsInPlace(), rounds=1, executor=executor)
