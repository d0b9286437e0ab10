"""Small federation and models for checks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedhead.core.training import global_generators
from fedhead.data.federation.federation import Federation, Samples
from fedhead.data.transforms.augment import Transform
from fedhead.models.registry import with_head
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split

SIZES = (9, 5, 0, 14, 3)  # uneven on purpose, one client empty, one smaller than a batch
CLASSES = 3
SHAPE = (1, 6, 6)


def small_federation(seed: int = 0) -> Federation:
    """Build five clients with 1x6x6 images of three classes, small client test sets and public data."""
    rng = np.random.RandomState(seed)
    total = sum(SIZES)
    x = rng.randint(0, 256, (total + 20, *SHAPE)).astype(np.uint8)
    y = rng.randint(0, CLASSES, total + 20)
    ends = np.cumsum(SIZES)
    indices = [np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    test = Samples(torch.from_numpy(x[total:]), torch.from_numpy(y[total:]))
    local = [np.arange(4 * k, 4 * k + 4) for k in range(len(SIZES))]
    return Federation(
        train=Samples(torch.from_numpy(x[:total]), torch.from_numpy(y[:total])),
        test=test,
        indices=indices,
        client_test=local,
        client_test_from="test",
        classes=CLASSES,
        transform=Transform.named("crop(1)+flip", "half"),
        public=test,
    )


class _Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(4 * 36, 8)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        return self.fc(self.hidden(self.body(x)))  # type: ignore[no-any-return]  # torch leaves calls untyped


def small_model(norm: str = "group", head: str | None = None) -> SplitModel:
    """Build a small convolutional network for `small_federation`.

    Args:
        norm: Normalization layer, "batch" or "group".
        head: Required head of a method; None: linear.
    """
    layer = {"batch": nn.BatchNorm2d(4), "group": nn.GroupNorm(2, 4)}[norm]
    with global_generators.seeded(0):
        model = split(_Net(layer), classifier="fc", projection="hidden")
    return model if head is None else with_head(model, head)


def small_perceptron(head: str | None = None) -> SplitModel:
    """Build a network without convolutions and normalization for `small_federation`: another architecture."""
    with global_generators.seeded(1):
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 8), nn.Linear(8, CLASSES))
    model = split(net, classifier="4")
    return model if head is None else with_head(model, head)
