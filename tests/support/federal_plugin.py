"""The code of a plugin package as a user would write it: one file with one component of each of the twelve kinds.

All that it needs of fedhead comes from `import fedhead as fh`.
"""

CODE = '''
"""A plugin package for fedhead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import nn

import fedhead as fh


@dataclass(frozen=True)
class FedMine(fh.Method):
    """FedAvg with a proximal term."""

    mu: float = 0.01

    def loss(self, w, batch, client):
        return super().loss(w, batch, client) + self.mu / 2 * (w - client.received["model"]).sq()


@dataclass(frozen=True)
class Shrink(fh.Stage):
    """Scale the classifier down."""

    factor: float = 0.5

    def aggregate(self, server, replies, task):
        model = server["model"]
        return server.replace(model=model.replace(model.part("classifier") * self.factor))


def net(shape, width: int = 12):
    """One hidden layer."""
    return fh.FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.Tanh()), width)


def whole_net(shape, classes, width: int = 12):
    """The same as a user's own module."""
    inputs = int(np.prod(shape))
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, classes))
    return fh.split(module, classifier="3")


def moons():
    """Two half circles."""
    from sklearn.datasets import make_moons

    x, y = make_moons(240, noise=0.1, random_state=0)
    return x[:200], y[:200], x[200:], y[200:]


def halves(y, clients, rng, share: float = 0.5):
    """The first client has a share of the samples, the others the rest."""
    order = rng.permutation(len(y))
    first = int(share * len(y))
    return [order[:first], *np.array_split(order[first:], clients - 1)]


class Cosine(nn.Linear):
    """A linear head without bias."""

    def __init__(self, features, classes, gain: Annotated[float, fh.Above(0)] = 1.0):
        super().__init__(features, classes, bias=False)
        self.gain = gain

    def forward(self, z):
        return self.gain * super().forward(z)


class MyLoop(fh.Executor):
    """The plain loop under another name."""

    def train(self, job: fh.Job) -> list[fh.Reply]:
        return fh.Loop().train(job)


@dataclass(frozen=True)
class Rounded(fh.Upload):
    """Send numbers with a few decimals."""

    decimals: Annotated[int, fh.AtLeast(0)] = 3

    def encode(self, send: fh.Tree, client: fh.Client) -> fh.Tree:
        return send.map(lambda t: t.round(decimals=self.decimals) if t.is_floating_point() else t)


@dataclass(frozen=True)
class Shortest(fh.Aggregator):
    """The mean of the shortest updates."""

    count: int = 2

    def combine(self, updates: Sequence[fh.Tree], previous: fh.Tree | None) -> fh.Tree:
        shortest = sorted(updates, key=lambda update: float(update.sq()))[: self.count]
        return sum(shortest[1:], start=shortest[0]) / len(shortest)


@dataclass(frozen=True)
class ByTurns(fh.Sampler):
    """One client less than asked for, another one in every round."""

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        return [k for k in sizes if k != round % len(sizes)]


def recall_of_first(confusion):
    """The first class's recall."""
    return confusion[0, 0] / confusion[0].sum()


def sizes(runs: Sequence[fh.Trained], options: fh.AnalysisOptions) -> fh.AnalysisReport:
    """How many parameters each run's model has."""
    models = {str(run.path): run.simulation.task.model for run in runs}
    return fh.AnalysisReport({path: sum(p.numel() for p in model.parameters()) for path, model in models.items()}, {})
'''

ENTRY_POINTS = {
    "fedhead.methods": {"fedmine": "federal:FedMine"},
    "fedhead.stages": {"shrink": "federal:Shrink"},
    "fedhead.models": {"tinynet": "federal:net"},
    "fedhead.datasets": {"moons": "federal:moons"},
    "fedhead.partitions": {"halves": "federal:halves"},
    "fedhead.heads": {"cosine": "federal:Cosine"},
    "fedhead.executors": {"myloop": "federal:MyLoop"},
    "fedhead.metrics": {"first_recall": "federal:recall_of_first"},
    "fedhead.papers.analyses": {"sizes": "federal:sizes"},
    "fedhead.uploads": {"rounded": "federal:Rounded"},
    "fedhead.aggregators": {"shortest": "federal:Shortest"},
    "fedhead.samplers": {"by_turns": "federal:ByTurns"},
}
