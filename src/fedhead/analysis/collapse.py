"""Neural collapse: how close features and classifier have come to one simplex, and how well clients agree on it.

The figures of FedETF's section 5.3, on features z, the classifier's input. `measure` looks at the global model,
`locally` at what the clients make of it in one more local round, and `Watch` records both after every round of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedhead.client import Client
from fedhead.engine import choose
from fedhead.engine.rounds import Snapshot
from fedhead.engine.simulation import Simulation
from fedhead.engine.state import Memory
from fedhead.errors import BadInput
from fedhead.method import Method, Stage
from fedhead.prototypes import class_sums
from fedhead.tree import Tree, Weights, stack
from fedhead.types import PARTS, Phase, Replies, Reply, Task

if TYPE_CHECKING:
    from fedhead.data.federation import Federation
    from fedhead.data.pool import Pool
    from fedhead.engine.job import Executor
    from fedhead.models.split import Split


class Collapse(NamedTuple):
    """The three properties of neural collapse, each as one number."""

    nc1: float  # variance within classes over that between them: 0 when features collapse to their prototypes
    nc2: float  # mean square of pairwise prototype cosines minus −1/(C−1): 0 when prototypes form a simplex ETF
    nc3: float  # mean cosine of classifier vectors and centred prototypes: 1 when both are aligned


# -- pure functions of features ---------------------------------------------------------------------------------------
def prototypes(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class [C, d] and the samples behind it [C]; 0 for a class without any."""
    member = (y == torch.arange(classes, device=y.device).unsqueeze(1)).to(z.dtype)
    counts = member.sum(1)
    return member @ z / counts.clamp_min(1).unsqueeze(1), counts


def within_over_between(z: Tensor, y: Tensor, classes: int) -> float:
    """NC1: the mean over classes of tr Σ_W, divided by the variance of the prototypes; it has no unit.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> within_over_between(z, torch.tensor([0, 0, 1]), classes=2)
    0.0
    """
    means, counts = prototypes(z, y, classes)
    spread, _ = prototypes((z - means[y]).square().sum(1, keepdim=True), y, classes)
    held = counts > 0
    between = (means[held] - means[held].mean(0)).square().sum(1).mean()
    return float(spread[held].mean() / between.clamp_min(1e-30))


def simplex_error(means: Tensor, centre: bool = False) -> float:
    """NC2: the mean square of the pairwise cosines minus −1/(C−1).

    The cosines are those of the prototypes themselves, as FedETF's Fig. 5b says; `centre` takes their mean off first,
    as its NC2 does.

    >>> round(simplex_error(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 6)
    0.0
    """
    count = len(means)
    if count < 2:
        return float("nan")
    unit = F.normalize(means - means.mean(0) if centre else means, dim=1)
    pairs = torch.ones(count, count, device=means.device).triu(1).bool()
    return float(((unit @ unit.T)[pairs] + 1 / (count - 1)).square().mean())


def alignment(means: Tensor, vectors: Tensor) -> float:
    """NC3: the mean cosine of each classifier vector with its class's centred prototype."""
    return float(F.cosine_similarity(means - means.mean(0), vectors, dim=1).mean())


def agreement(vectors: Tensor, held: Tensor | None = None) -> Tensor:
    """How alike the clients' vectors of one class are: pairwise cosines [K, K], the mean over the classes.

    `vectors` is [K, C, d]: prototypes (Fig. 5a) or classifier rows (Fig. 1). Only classes that both clients of a pair
    hold (`held`, [K, C]) count; a pair without any is nan.
    """
    unit = F.normalize(vectors, dim=-1)
    there = torch.ones_like(unit[..., 0]) if held is None else held.to(unit.dtype)
    cosines = torch.einsum("icd,jcd,ic,jc->ij", unit, unit, there, there)
    return cosines / (there @ there.T)


def consistency(vectors: Tensor, held: Tensor | None = None) -> float:
    """The mean of `agreement` over all pairs of clients that can be compared."""
    pairs = agreement(vectors, held)
    other = torch.ones_like(pairs).triu(1).bool()
    return float(pairs[other].nanmean())


# -- on a federation --------------------------------------------------------------------------------------------------
@torch.no_grad()
def features(model: Split, w: Weights, pool: Pool, batch: int = 1024) -> tuple[Tensor, Tensor]:
    """The features z and labels of all samples of a pool, in evaluation mode."""
    rows = torch.arange(len(pool), device=pool.device)
    found = [functional_call(model.eval(), dict(w), (pool.view(part, None),)).z for part in torch.split(rows, batch)]
    return torch.cat(found), pool.y


def measure(simulation: Simulation, server: Tree | None = None) -> Collapse:
    """Neural collapse of the global model on the global test set."""
    w = simulation.method.global_model(simulation.server if server is None else server, simulation.task)
    if w is None or simulation.test is None:
        lacking = "global model" if w is None else "global test set"
        raise BadInput(f"neural collapse can't be measured: this run has no {lacking}")
    model = simulation.task.model
    z, y = features(model, w, simulation.test)
    means, counts = prototypes(z, y, simulation.task.classes)
    held = counts > 0
    aligned = alignment(means[held], w["classifier.weight"][held])
    return Collapse(within_over_between(z, y, simulation.task.classes), simplex_error(means[held]), aligned)


class LocalView(NamedTuple):
    """What each client's own model says after local training."""

    prototypes: Tensor  # [K, C, d], of the client's own samples
    held: Tensor  # [K, C], which classes the client holds
    vectors: Tensor  # [K, C, d], the rows of its classifier


@dataclass(frozen=True)
class _Look(Stage):
    """One more local round of all clients, of which only prototypes and classifiers are looked at."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return self.method.phases(task)

    def correct(self, g: Tree, me: Client) -> Tree:
        return self.method.correct(g, me)

    def finish(self, w: Weights, me: Client) -> Reply:
        means = class_sums(me, w.part(*PARTS), lambda out: out.z) / me.counts.clamp_min(1).unsqueeze(1)
        sent = Tree(prototypes=means, held=me.counts > 0, vectors=w["classifier.weight"])
        return Reply(send=sent, keep=me.state)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        return stack(list(replies.sent))


def locally(
    simulation: Simulation, executor: Executor, server: Tree | None = None, memory: Memory | None = None, round: int = 0
) -> LocalView:
    """Prototypes and classifiers of all clients after one more local round; the federation stays as it is."""
    begin = simulation.server if server is None else server
    kept = (simulation.memory if memory is None else memory).copy()
    number = round or simulation.task.rounds + 1
    look = _Look().after(simulation.method)
    found, _ = simulation.exchange(look, begin, kept, simulation.holders, number, executor)
    return LocalView(found["prototypes"], found["held"], found["vectors"])


class Watch:
    """Records neural collapse after every round: give it to a run as `on_round`, then read `rows`.

    It holds a simulation of its own, so that it can look without touching the run. Consistency is that of the clients'
    models in the following round, for which each client trains once more: `clients=False` leaves that out.
    """

    def __init__(
        self,
        federation: Federation,
        models: Sequence[Split],
        method: Method,
        *,
        executor: str = "stack",
        clients: bool = True,
        every: int = 1,
        **settings: Any,
    ):
        self.simulation = Simulation(federation, models, method, **settings)
        self.executor = choose.named(executor, self.simulation)
        self.clients, self.every = clients, every
        self.rows: list[dict[str, float]] = []

    def __call__(self, now: Snapshot) -> None:
        """Look at the state after a round."""
        if now.round % self.every:
            return
        row: dict[str, float] = {"round": now.round, **measure(self.simulation, now.server)._asdict()}
        if self.clients:
            memory = Memory(self.simulation.initial_state, now.clients)
            view = locally(self.simulation, self.executor, now.server, memory, now.round + 1)
            row["prototype_consistency"] = consistency(view.prototypes, view.held)
            row["classifier_consistency"] = consistency(view.vectors)
        self.rows.append(row)
