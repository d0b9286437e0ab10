"""Neural collapse: distance of features and classifier from a simplex ETF, and agreement of clients.

The metrics of FedETF's section 5.3, on features z, the classifier's input. `measure` evaluates the global model,
`local_view` the clients' models in the next round, and `round_metrics` both, also during a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.engine.rounds.simulation import Simulation
from fedhead.papers.analyses.client_models import (
    check_same_size,
    global_weights,
    held_out_features,
    local_models,
    own_features,
)

if TYPE_CHECKING:
    from fedhead.executors.client.base import Executor


class Collapse(NamedTuple):
    """Three metrics of neural collapse."""

    nc1: float  # variance within classes over that between them: 0 when features collapse to their prototypes
    nc2: float  # mean of (cosine + 1/(C−1))² over pairs of prototypes: 0 when they form a simplex ETF
    nc3: float  # mean cosine of classifier vectors and centered prototypes: 1 when both are aligned


# -- pure functions of features ---------------------------------------------------------------------------------------
def prototypes(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class [C, d] and its number of samples [C]; 0 for a class without any."""
    member = (y == torch.arange(classes, device=y.device).unsqueeze(1)).to(z.dtype)
    counts = member.sum(1)
    return member @ z / counts.clamp_min(1).unsqueeze(1), counts


def within_over_between(z: Tensor, y: Tensor, classes: int) -> float:
    """Compute NC1: the mean over classes of tr Σ_W, divided by the variance of the prototypes.

    Args:
        z: Features, [N, d].
        y: Labels, [N].
        classes: Number of classes.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> within_over_between(z, torch.tensor([0, 0, 1]), classes=2)
    0.0
    """
    means, counts = prototypes(z, y, classes)
    spread, _ = prototypes((z - means[y]).square().sum(1, keepdim=True), y, classes)
    present = counts > 0
    between = (means[present] - means[present].mean(0)).square().sum(1).mean()
    return float(spread[present].mean() / between.clamp_min(1e-30))


def simplex_error(means: Tensor) -> float:
    """Compute NC2 as in the paper's Fig. 5b: the mean of (cosine + 1/(C−1))² over pairs of prototypes [C, d].

    >>> round(simplex_error(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 6)
    0.0
    """
    count = len(means)
    if count < 2:
        return float("nan")
    unit = F.normalize(means, dim=1)
    pairs = torch.ones(count, count, device=means.device).triu(1).bool()
    return float(((unit @ unit.T)[pairs] + 1 / (count - 1)).square().mean())


def alignment(means: Tensor, vectors: Tensor) -> float:
    """Compute NC3: the mean cosine of each classifier vector with the centered prototype of its class."""
    return float(F.cosine_similarity(means - means.mean(0), vectors, dim=1).mean())


def agreement(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the pairwise cosines of the clients' vectors of the same class, averaged over classes.

    Args:
        vectors: [K, C, d]: prototypes (Fig. 5a) or classifier rows (Fig. 1).
        mask: Mask of the classes of each client, [K, C]; a pair is compared only on the classes that both clients have.

    Returns:
        Cosines [K, K]; nan for a pair without common classes.
    """
    unit = F.normalize(vectors, dim=-1)
    present = torch.ones_like(unit[..., 0]) if mask is None else mask.to(unit.dtype)
    cosines = torch.einsum("icd,jcd,ic,jc->ij", unit, unit, present, present)
    return cosines / (present @ present.T)


def consistency(vectors: Tensor, mask: Tensor | None = None) -> float:
    """Return the mean of `agreement` over all pairs of clients with common classes."""
    pairs = agreement(vectors, mask)
    other = torch.ones_like(pairs).triu(1).bool()
    return float(pairs[other].nanmean())


# -- on a federation --------------------------------------------------------------------------------------------------
def measure(simulation: Simulation) -> Collapse:
    """Measure neural collapse of the global model on the global test set."""
    z, y = held_out_features(simulation)
    classes = simulation.task.classes
    means, counts = prototypes(z, y, classes)
    present = counts > 0
    vectors = global_weights(simulation)["classifier.weight"]
    return Collapse(
        within_over_between(z, y, classes), simplex_error(means[present]), alignment(means[present], vectors[present])
    )


class LocalView(NamedTuple):
    """Prototypes and classifiers of the clients' models after local training; clients without data are excluded."""

    clients: list[int]
    prototypes: Tensor  # [K, C, d], class means of each client's samples
    has_class: Tensor  # [K, C], mask of each client's classes
    vectors: Tensor  # [K, C, d], rows of each client's classifier


def local_view(simulation: Simulation, executor: Executor, round: int) -> LocalView:
    """Return prototypes and classifiers of all clients after local training in the next round."""
    models = local_models(simulation, executor, round)
    check_same_size([task.model.features for task in simulation.clients.tasks], "the run")
    means, masks = [], []
    for z, y in own_features(simulation, models).values():
        local_means, counts = prototypes(z, y, simulation.task.classes)
        means.append(local_means)
        masks.append(counts > 0)
    vectors = torch.stack([w["classifier.weight"] for w in models.values()])
    return LocalView(list(models), torch.stack(means), torch.stack(masks), vectors)


def round_metrics(simulation: Simulation, executor: Executor, round: int) -> dict[str, float]:
    """Compute all metrics after a round: of the global model, and of the clients' models in the next round."""
    row: dict[str, float] = {"round": round, **measure(simulation)._asdict()}
    view = local_view(simulation, executor, round + 1)
    row["prototype_consistency"] = consistency(view.prototypes, view.has_class)
    row["classifier_consistency"] = consistency(view.vectors)
    return row
