"""BatchNorm on partial batches against a plain PyTorch loop, which sees no padding, in float64 on every executor."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from plain import Plain
from simulations import make_simulation
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training import global_generators
from fedhead.core.training.optimizers import SGD
from fedhead.data.federation.federation import Federation, Samples
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.local_only import LocalOnly
from fedhead.models.registry import build
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split

BATCH = 32
SIZES = (70, 64, 7, 36, 102)  # batches of 32/32/6, 32/32, 7, 32/4 and 32/32/32/6
CLASSES = 3


class OwnNorm(nn.Module):
    """Normalization that calls `F.batch_norm` itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, training=self.training, momentum=0.4, eps=1e-3)


class Net(nn.Module):
    """A user's network, with BatchNorm layers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), OwnNorm(4)
        )
        self.volumes = nn.BatchNorm3d(2, affine=False, momentum=0.3)
        self.rows = nn.BatchNorm1d(6)  # sees 24 rows of a sample as 24 rows of the batch
        self.vectors = nn.Sequential(
            nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=0.2)
        )
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.images(x)
        x = self.volumes(x.reshape(-1, 2, 2, 6, 6))
        x = self.rows(x.reshape(-1, 6)).reshape(-1, 144)
        return self.fc(self.vectors(x))  # type: ignore[no-any-return]


def own() -> SplitModel:
    with global_generators.seeded(0):
        return split(Net(), classifier="fc").double()


def built_in(name: str) -> SplitModel:
    return build(name, (1, 6, 6), CLASSES).double()


def federation() -> Federation:
    rng = np.random.RandomState(0)
    total = sum(SIZES)
    x = torch.from_numpy(rng.randint(0, 256, (total, 1, 6, 6)).astype(np.uint8))
    ends = np.cumsum(SIZES)
    return Federation(
        train=Samples(x, torch.from_numpy(rng.randint(0, CLASSES, total))),
        indices=[np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)],
        classes=CLASSES,
        transform=Transform.named("none", "half"),
    )


def trained(model: SplitModel, executor: Executor) -> Simulation:
    optimizer = SGD(lr=0.05, momentum=0.9, weight_decay=1e-3)
    local = LocalTraining(epochs=2, batch_size=BATCH, optimizer=optimizer)
    simulation = make_simulation(federation(), [model], LocalOnly(), rounds=2, local=local, dtype=torch.float64)
    for number in (1, 2):
        train_round(simulation.using(executor), number)
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("model", [own(), built_in("mlp(norm=batch)")], ids=["own", "mlp"])
@pytest.mark.parametrize("executor", [Loop(), Stack(), Stack(2)], ids=["loop", "stack", "small stacks"])
def test_weights_and_running_statistics(model: SplitModel, executor: Executor) -> None:
    found = trained(model, executor)
    plain = Plain(federation(), batch_size=BATCH, momentum=0.9, weight_decay=1e-3)
    for client in range(len(SIZES)):
        mine = copy.deepcopy(model)
        for number in (1, 2):
            mine, _ = plain.train(mine, client, number)
        names = {name for name, _ in [*mine.named_parameters(), *mine.named_buffers()]}
        assert any("running_var" in name for name in names)
        assert names == found.states[client]["own"].keys()
        for name, value in mine.state_dict().items():
            torch.testing.assert_close(found.states[client]["own"][name], value, atol=1e-10, rtol=0)
