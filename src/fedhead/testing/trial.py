"""Short training runs on the small federation, and comparisons of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.policies import reply_check
from fedhead.engine.rounds.rounds import run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import Vectorizer
from fedhead.executors.loop import Loop
from fedhead.models.split_model import SplitModel
from fedhead.testing.checks import require
from fedhead.testing.small import small_federation

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3), lr_decay=0.9)

CPU = Compute(device="cpu", executor="loop")
PARTICIPATION = 0.6  # share of the clients in each round


@dataclass(frozen=True)
class Trial:
    """Short training run with a method, and a stage that follows it, on the small federation.

    Args:
        method: Method that is trained.
        models: Models, one per architecture.
        local: Local training.
        rounds: Number of rounds.
        stage: Stage after the rounds; None to check the method itself.
        dtype: Floating-point type.
    """

    method: Method
    models: list[SplitModel]
    local: LocalTraining = LOCAL
    rounds: int = 3
    stage: Stage | None = None
    dtype: torch.dtype = torch.float64

    @property
    def owner(self) -> str:
        """Name of the component that is checked."""
        return type(self.stage or self.method).__name__

    @property
    def algorithm(self) -> Algorithm:
        """The method or the stage that is checked."""
        return self.method if self.stage is None else self.stage.on_method(self.method)

    def simulation(self) -> Simulation:
        """Return a new simulation."""
        return Simulation(self.experiment(()), small_federation(), CPU, dtype=self.dtype)

    def experiment(self, stages: Sequence[Stage]) -> Experiment:
        """Return the experiment, with stages after its rounds."""
        schedule = Schedule(self.rounds, participation=PARTICIPATION)
        return Experiment(self.method, tuple(self.models), self.local, schedule, tuple(stages))

    def train(self, executor: Executor, rounds: int | None = None) -> Simulation:
        """Train all rounds, or the first ones, in a new simulation."""
        return train(self.simulation(), executor, 1, self.rounds if rounds is None else rounds)

    @cached_property
    def trained(self) -> Simulation:
        """Reference simulation after all rounds, trained sequentially."""
        return self.train(Loop())

    def outcome(self, executor: Executor) -> dict[str, Tensor]:
        """Return all tensors after the rounds, or after the stage."""
        if self.stage is not None:
            return _stage_tensors(self.trained, self.stage, executor)
        return final_tensors(self.trained if isinstance(executor, Loop) else self.train(executor))

    def outcome_after_checkpoint(self, file: Path) -> dict[str, Tensor]:
        """Return `outcome` with a checkpoint written and read before the stage, or before the last round."""
        before = self.trained if self.stage is not None else self.train(Loop(), self.rounds - 1)
        clients = Tree({str(k): state for k, state in before.states.kept.items()})
        save_tree(file, Tree(server=before.server, clients=clients), {"round": before.round})
        state, metadata = load_tree(file)
        simulation = self.simulation()
        simulation.server, simulation.round = state["server"], metadata["round"]
        for k, kept in state["clients"].items():
            simulation.states[int(k)] = kept
        if self.stage is not None:
            return _stage_tensors(simulation, self.stage, Loop())
        return final_tensors(train(simulation, Loop(), self.rounds, self.rounds))


def train(simulation: Simulation, executor: Executor, first: int, last: int) -> Simulation:
    """Train some rounds."""
    for number in range(first, last + 1):
        train_round(simulation.using(executor), number)
    return simulation


def _stage_tensors(simulation: Simulation, stage: Stage, executor: Executor) -> dict[str, Tensor]:
    result = run_stage(simulation.using(executor), stage)
    tensors = state_tensors(result.server, {k: result.states[k] for k in simulation.clients.holders})
    accuracies = {"accuracy": result.accuracy, "personal accuracy": result.personal}
    return tensors | {name: torch.tensor(float(value or 0.0)) for name, value in accuracies.items()}


def final_tensors(simulation: Simulation) -> dict[str, Tensor]:
    """Return all named tensors of the server's and the clients' states."""
    return state_tensors(simulation.server, dict(sorted(simulation.states.kept.items())))


def state_tensors(server: Tree, clients: Mapping[int, Tree]) -> dict[str, Tensor]:
    """Return all named tensors of a server's and some clients' states."""
    tensors = {f"the server's state: {name}": t for name, t in server.leaves().items()}
    for k, state in clients.items():
        tensors |= {f"client {k}'s state: {name}": t for name, t in state.leaves().items()}
    return tensors


def difference(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 0.0) -> str | None:
    """Describe a difference beyond the tolerance (relative to 1 or to the larger number), or return None."""
    for name in sorted(first.keys() ^ second.keys()):
        return f"{name} is there only once"
    for name, a in first.items():
        b = second[name]
        if a.shape != b.shape:
            return f"{name} has shape {list(a.shape)} once and {list(b.shape)} once"
        a, b = a.double(), b.double()
        gap = (a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp_min(1.0)
        gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, gap)
        if not bool((gap <= tolerance).all()):
            return f"{name} differs by {gap.max().item():.1e}"
    return None


class PlainLoop(Executor):
    """Executor that runs each client twice, one after another, and compares the replies."""

    name = "loop"

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.sent: tuple[str, Schema] | None = None

    def train(self, job: Job) -> list[Reply]:
        """Return the replies, in the order of the job's clients."""
        return [self._client(job, k) for k in range(len(job.clients))]

    def _client(self, job: Job, k: int) -> Reply:
        where = f"client {job.clients[k]}, round {job.round}"
        reply, again = (local_round(job.program, job.inputs(k), job.batches(k), Vectorizer()) for _ in range(2))
        for word, first, second in (("sends", reply.send, again.send), ("keeps", reply.keep, again.keep)):
            gap = difference(first.leaves(), second.leaves())
            require(
                not gap,
                f"{self.owner}: the same round of the same client {word} something else each time ({where}: {gap}): a "
                "hook depends on more than its arguments, such as the time, a global variable or a generator",
            )
        self._check_schemas(job.program.algorithm, job.states[k], reply, where)
        return reply

    def _check_schemas(self, algorithm: Algorithm, state: Tree, reply: Reply, where: str) -> None:
        before, expected = self.sent = self.sent or (where, schema(reply.send))
        odd = reply_check.difference(schema(reply.send), expected)
        require(
            not odd,
            f"{self.owner}.finish does not send for {where} what it sent for {before} ({odd}): names, shapes and types "
            "must be the same for all clients and rounds; send zeros for what is not there yet",
        )
        odd = reply_check.difference(schema(reply.keep), schema(state)) if isinstance(algorithm, Method) else None
        require(
            not odd,
            f"{self.owner}.finish does not keep what init_client made ({odd}): give it the same names, shapes and "
            "types, with zeros for what is not there yet",
        )
