"""Short runs of the small federation, and comparisons of what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.engine.clients.padding_check import PaddingCheck
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import local_round
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import Vectorizer
from fedhead.executors.loop import Loop
from fedhead.models.split_model import SplitModel
from fedhead.testing.failure import CheckFailed
from fedhead.testing.small import small_federation

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3), lr_decay=0.9)

PARTICIPATION = 0.6  # of the clients, in each round


@dataclass(frozen=True)
class Trial:
    """A short run, described."""

    method: Method
    models: list[SplitModel]
    local: LocalTraining = LOCAL
    rounds: int = 3
    dtype: torch.dtype = torch.float64

    def simulation(self) -> Simulation:
        """Set the run up."""
        return Simulation(
            small_federation(),
            self.models,
            self.method,
            rounds=self.rounds,
            local=self.local,
            participation=PARTICIPATION,
            dtype=self.dtype,
        )

    def run(self, executor: Executor, rounds: int | None = None) -> Simulation:
        """Train all rounds, or the first ones."""
        return train(self.simulation(), executor, 1, self.rounds if rounds is None else rounds)

    @cached_property
    def finished(self) -> Simulation:
        """The whole run, one client after another, which all others are held to."""
        return self.run(Loop())

    def after_checkpoint(self, folder: Path) -> Simulation:
        """Train with a break before the last round, over which everything goes through a file."""
        before = self.run(Loop(), self.rounds - 1)
        store(before, folder / "checkpoint.safetensors")
        return train(load(self.simulation(), folder / "checkpoint.safetensors"), Loop(), self.rounds, self.rounds)


def train(simulation: Simulation, executor: Executor, first: int, last: int) -> Simulation:
    """Train some rounds."""
    for number in range(first, last + 1):
        train_round(simulation.using(executor), number)
    return simulation


def store(simulation: Simulation, path: Path) -> None:
    """Write the states of server and clients to a file."""
    clients = Tree({str(k): state for k, state in simulation.states.kept.items()})
    save_tree(path, Tree(server=simulation.server, clients=clients), {"round": simulation.round})


def load(simulation: Simulation, path: Path) -> Simulation:
    """Give a simulation the states of a file."""
    state, metadata = load_tree(path)
    simulation.server, simulation.round = state["server"], metadata["round"]
    for k, kept in state["clients"].items():
        simulation.states[int(k)] = kept
    return simulation


def final_tensors(simulation: Simulation) -> dict[str, Tensor]:
    """What a run leaves behind: every tensor of the server's state and of the clients', by name."""
    found = {f"the server's state: {name}": t for name, t in simulation.server.leaves().items()}
    for k, state in sorted(simulation.states.kept.items()):
        found |= {f"client {k}'s state: {name}": t for name, t in state.leaves().items()}
    return found


def difference(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> str | None:
    """Say where two results differ by more than a tolerance, relative to 1 or to the larger number; None: nowhere."""
    for name in sorted(one.keys() ^ other.keys()):
        return f"{name} is there only once"
    for name, a in one.items():
        b = other[name]
        if a.shape != b.shape:
            return f"{name} has shape {list(a.shape)} once and {list(b.shape)} once"
        a, b = a.double(), b.double()
        gap = (a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp_min(1.0)
        gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, gap)
        if not bool((gap <= tolerance).all()):
            return f"{name} differs by {gap.max().item():.1e}"
    return None


class PlainLoop(Executor):
    """One client after another in one thread, each of them twice; keeps an eye on the replies."""

    name = "loop"

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.sent: tuple[str, Schema] | None = None

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        return [self._client(job, k) for k in range(len(job.clients))]

    def _client(self, job: Job, k: int) -> Reply:
        where = f"client {job.clients[k]}, round {job.round}"
        reply, again = (local_round(job.program, job.inputs(k), job.batches(k), Vectorizer()) for _ in range(2))
        for word, one, other in (("sends", reply.send, again.send), ("keeps", reply.keep, again.keep)):
            if gap := difference(one.leaves(), other.leaves()):
                raise CheckFailed(
                    f"{self.owner}: the same round of the same client {word} something else each time "
                    f"({where}: {gap}): a hook depends on more than its arguments, such as the time, "
                    f"a global variable or a generator"
                )
        self._check_schemas(job.program.algorithm, job.states[k], reply, where)
        return reply

    def _check_schemas(self, algorithm: Algorithm, state: Tree, reply: Reply, where: str) -> None:
        found = schema(reply.send)
        before, expected = self.sent or (where, found)
        if odd := odd_entry(found, expected):
            raise CheckFailed(
                f"{self.owner}.finish sends another {odd!r} for {where} than for {before}: names, shapes and types "
                f"must be the same for all clients and rounds; send zeros for what is not there yet"
            )
        self.sent = (before, expected)
        if isinstance(algorithm, Method) and (odd := odd_entry(schema(reply.keep), schema(state))):
            raise CheckFailed(
                f"{self.owner}.finish keeps another {odd!r} than init_client made: give it the same names, shapes and "
                f"types, with zeros for what is not there yet"
            )


def odd_entry(one: Schema, other: Schema) -> str | None:
    """The first name by which two schemas differ."""
    return next((name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)), None)


def check_padding(simulation: Simulation, algorithm: Algorithm, round: int) -> None:
    """Raise `BadInput` for a loss that counts padding rows, from the present state."""
    jobs = simulation.jobs(algorithm, simulation.server, simulation.states, simulation.holders, round)
    for group, job in enumerate(jobs):
        PaddingCheck()(job, group)
