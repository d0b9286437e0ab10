"""Membership inference on a trained model: loss threshold, and likelihood ratios by shadow models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy  # scipy.stats is imported lazily
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.api.trained import StateAfter
from fedhead.core.training import random
from fedhead.core.tree.inputs import Inputs, map_inputs
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.arrays import Samples
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods.local_only import LocalOnly

MOST = 1000  # members, and as many other samples
EPOCHS = 50  # limit for training a shadow model


def candidates(federation: Federation, client: int | None, seed: int) -> tuple[Samples, NDArray[np.bool_]]:
    """Return training samples and as many test samples in one set, and a mask of the former.

    Args:
        federation: Data of the run, with a test set.
        client: Client whose samples are the members; None: all clients'.
        seed: Seed of the choice.
    """
    assert federation.test is not None, "checked before"
    generator = np.random.default_rng(random.key(seed, "membership"))
    rows = np.concatenate(federation.indices) if client is None else federation.indices[client]
    count = min(len(rows), len(federation.test.y), MOST)
    members = federation.train.take(generator.choice(rows, count, replace=False))
    others = federation.test.take(generator.choice(len(federation.test.y), count, replace=False))
    x = map_inputs(lambda inside, outside: torch.cat([inside, outside]), members.x, others.x)
    return Samples(x, torch.cat([members.y, others.y])), np.arange(2 * count) < count


def confidences(state: StateAfter, x: Inputs, y: Tensor, client: int | None) -> NDArray[np.float64]:
    """Return log(p / (1 − p)) of the probability p of each sample's label; it falls with the loss."""
    logs = state.scores(x, client).double().log_softmax(1)
    other = logs.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    return (logs.gather(1, y[:, None])[:, 0] - other).clamp(-50, 50).numpy()


def likelihood_ratios(
    target: NDArray[np.float64],
    samples: Samples,
    federation: Federation,
    experiment: Experiment,
    shadows: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return the log-likelihood ratio of membership of each sample (LiRA; Carlini et al., 2022, Algorithm 1).

    Each shadow model is trained on a random half of the samples, so every sample is in about half of them. The target's
    confidence is compared with a normal distribution over shadows with the sample, and one over those without; with few
    shadows all samples share their variances. All shadows are trained at once, as the clients of a federation.

    Args:
        target: Confidences of the attacked model.
        samples: Candidates, half of them members.
        federation: Data of the run.
        experiment: Experiment of the run: the shadows have its first architecture and its local training.
        shadows: Number of shadow models.
        seed: Seed of the halves.
    """
    count, generator = len(samples.y), np.random.default_rng(random.key(seed, "shadows"))
    inside = generator.random((shadows, count)).argsort(1) < count // 2
    rows = [np.flatnonzero(each) for each in inside]
    local, rounds = experiment.local, experiment.schedule.rounds
    epochs = min(EPOCHS, max(1, rounds * local.epochs)) if isinstance(local.epochs, int) else EPOCHS
    shadow = Experiment(
        LocalOnly(), experiment.models[:1], replace(local, epochs=epochs, steps=None), Schedule(rounds=1, seed=seed)
    )
    data = Federation(samples, rows, federation.classes, transform=federation.transform, test=samples, client_test=rows)
    simulation = Simulation(shadow, data, Compute(executor="stack"))
    simulation.begin()
    train_round(simulation, 1)
    state = StateAfter(simulation.clients, shadow.method, simulation.server, simulation.states, 1)
    each = np.stack([confidences(state, samples.x, samples.y, k) for k in range(shadows)])

    def log_density(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        mean = np.where(chosen, each, 0).sum(0) / chosen.sum(0).clip(1)
        spread = np.sqrt(np.where(chosen, (each - mean) ** 2, 0).sum() / (chosen.sum() - count)) + 1e-6
        return np.asarray(scipy.stats.norm.logpdf(target, mean, spread))

    return log_density(inside) - log_density(~inside)
