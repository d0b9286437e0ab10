"""Small federations on which every method is tried."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedhead.data.augment import Transform
from fedhead.data.federation import Federation, Samples
from fedhead.models.registry import with_head
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split

SIZES = (9, 5, 0, 14, 3)  # uneven on purpose, one client empty, one smaller than a batch
CLASSES = 3


def federation(seed: int = 0) -> Federation:
    """Five clients with 1x6x6 images of three classes, each with a small test set of its own."""
    rng = np.random.RandomState(seed)
    total = sum(SIZES)
    x = rng.randint(0, 256, (total + 20, 1, 6, 6)).astype(np.uint8)
    y = rng.randint(0, CLASSES, total + 20)
    ends = np.cumsum(SIZES)
    rows = [np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    test = Samples(torch.from_numpy(x[total:]), torch.from_numpy(y[total:]))
    local = [np.arange(4 * k, 4 * k + 4) for k in range(len(SIZES))]
    return Federation(
        train=Samples(torch.from_numpy(x[:total]), torch.from_numpy(y[:total])),
        test=test,
        rows=rows,
        client_test=local,
        client_test_from="test",
        classes=CLASSES,
        transform=Transform.named("crop(1)+flip", "half"),
        public=test,
    )


def network(norm: str, head: str | None = None) -> SplitModel:
    """A small convolutional network with the given normalization layer and, where a method needs one, another head."""
    layer = {"batch": nn.BatchNorm2d(4), "group": nn.GroupNorm(2, 4)}[norm]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), layer, nn.ReLU(), nn.Flatten())
            self.hidden = nn.Linear(4 * 36, 8)
            self.fc = nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.hidden(self.body(x)))  # type: ignore[no-any-return]

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = split(Net(), classifier="fc", projection="hidden")
    return model if head is None else with_head(model, head)
