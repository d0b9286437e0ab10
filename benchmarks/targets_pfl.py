"""pfl-research's own training loop on its CIFAR-10 benchmark's model, for `targets.py`: seconds per round."""

from __future__ import annotations

import time
import types
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from targets_data import pfl_module
from torch import Tensor, nn


class Clock(TrainingProcessCallback):
    """Notes when a round ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        """Note the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        return False, Metrics()


def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a batch, as pfl-research asks a module for it."""
    self.train()
    return nn.functional.cross_entropy(self(x), y)


def metrics(self: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Return no metrics: no side is tested while it is timed."""
    return {}


def seconds_per_round(rounds: int, users: int, cohort: int, device: str, samples: int = 50) -> float:
    """Return the median of the seconds of pfl-research's rounds, after a few that warm up.

    Args:
        rounds: How many rounds to train.
        users: Number of users, with `samples` images each, which lie on the device as in its benchmark.
        cohort: How many of them train in a round.
        device: Where to compute.
        samples: Samples per user, in batches of ten.
    """
    where = torch.device(device)
    x = torch.randn(users * samples, 3, 32, 32, device=where)
    y = torch.arange(len(x), device=where) % 10
    slices = [(a, b) for a, b in zip(x.split(samples), y.split(samples), strict=True)]
    data = FederatedDataset(
        lambda k: Dataset(slices[k], user_id=str(k)), get_user_sampler("random", list(range(users)))
    )
    module = pfl_module((3, 32, 32)).to(where)
    vars(module).update(loss=types.MethodType(loss, module), metrics=types.MethodType(metrics, module))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds + 1, train_cohort_size=cohort, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_learning_rate=0.1, local_num_epochs=1, local_batch_size=10),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return float(np.median(np.diff(clock.ends)[rounds // 10 :]))
