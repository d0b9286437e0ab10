"""A client's round: what its phases train, and whose optimizers survive it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.client_round import initial_optimizer_states, trained_names
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.stages import STAGES

NAMES = ["extractor.weight", "extractor.mean", "classifier.weight", "classifier.bias"]
MODEL = Weights({name: torch.zeros(1) for name in NAMES}, buffers=["extractor.mean"])


def nothing(*_: object) -> torch.Tensor:
    return torch.zeros(())


def architecture(fixed_by_head: set[str], frozen: set[str]) -> Any:
    return SimpleNamespace(fixed_by_head=frozenset(fixed_by_head), frozen=frozenset(frozen))


@pytest.mark.parametrize(
    ("trains", "names"),
    [
        (("extractor", "classifier"), ["extractor.weight", "classifier.bias"]),  # what a head fixes is left out
        (("classifier",), ["classifier.bias"]),
        (("classifier.weight",), ["classifier.weight"]),  # unless it is named in full
        (("extractor",), ["extractor.weight"]),  # running statistics are measured, not trained
    ],
)
def test_a_phase_trains_what_lies_under_its_names(trains: tuple[str, ...], names: list[str]) -> None:
    assert trained_names(MODEL, Phase(nothing, trains), architecture({"classifier.weight"}, set())) == names


def test_a_phase_never_trains_what_is_frozen() -> None:
    frozen = {"extractor.weight", "classifier.weight"}
    phase = Phase(nothing, ("extractor", "classifier.weight", "classifier.bias"))
    names = trained_names(MODEL, phase, architecture(frozen, frozen))
    assert names == ["classifier.bias"]
    with pytest.raises(BadInput, match=r"trains only extractor.*'extractor\.weight'.*frozen.*freeze less"):
        trained_names(MODEL, Phase(nothing, ("extractor",)), architecture(set(), frozen))


def test_optimizers_survive_a_round_but_stages_start_afresh() -> None:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.1, 0.9), persistent=True)
    made = make_simulation(federation(), [network("batch")], METHODS["fedavg"](), rounds=1, local=local)
    assert made.clients.program(made.experiment.method, 0).persistent
    assert not made.clients.program(STAGES["finetune"](), 0).persistent
    state = initial_optimizer_states(
        METHODS["fedavg"](), made.task, made.clients.initial[0], made.clients.initial_state(0)
    )
    assert state["0"]["velocity"].keys() == made.clients.initial[0].params.keys()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_clients_first_optimizers_have_the_form_of_those_it_keeps(name: str) -> None:
    local = LocalTraining(epochs=1, batch_size=8, optimizer=SGD(0.01, 0.9), persistent=True)
    model = network("batch", METHODS[name].head)
    made = make_simulation(federation(), [model], METHODS[name](), rounds=1, local=local)
    before = made.clients.initial_state(4)
    train_round(made, 1)
    assert list(made.states[4].leaves()) == list(before.leaves())


class OwnClassifier(Method):
    """A client keeps the classifier of its first phase."""

    def init_client(self, w: Weights, task: Task) -> Tree:
        return Tree(own=w.part("classifier"))

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return Phase(self.loss, ("classifier",), saves="own"), Phase(self.loss)

    def finish(self, w: Weights, client: Client) -> Reply:
        own = client.state["own"].part("classifier")
        return Reply(send=Tree(moved=w.part("classifier") - own), keep=Tree(own=own))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        moved.append(replies.mean("moved")["classifier.weight"].norm().item())
        return server


moved: list[float] = []


def test_a_phase_saves_what_it_has_trained_and_the_state_keeps_its_form() -> None:
    local = LocalTraining(epochs=1, batch_size=8, optimizer=SGD(0.01))
    made = make_simulation(federation(), [network("batch")], OwnClassifier(), rounds=3, local=local, participation=0.5)
    for number in (1, 2, 3):  # clients that took part before, in one stack with others
        train_round(made.using(Stack()), number)
    names = made.clients.initial_state(0)["own"].keys()
    assert all(state["own"].keys() == names for state in made.states.kept.values())
    assert 0 < len({len(made.cohort(number)) for number in (1, 2, 3)}) < len(made.states.kept)
    assert (len(moved), min(moved) > 0) == (3, True)  # by the second phase
