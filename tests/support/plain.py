"""An independent plain-PyTorch federation, one client after another, against which methods are held.

It shares nothing with the engine but the order of the samples: modules with `torch.optim`, deep copies, loops.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedhead.core.training import batching
from fedhead.data.federation.federation import Federation
from fedhead.models.split_model import SplitModel

Extra = Callable[[SplitModel, Tensor, Tensor], Tensor]


@dataclass
class Plain:
    """Local training as a textbook writes it."""

    federation: Federation
    epochs: int = 2
    batch_size: int = 4
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    seed: int = 0

    def train(
        self,
        model: SplitModel,
        client: int,
        round: int,
        extra: Extra | None = None,
        edit_gradients: Callable[[SplitModel], None] | None = None,
    ) -> tuple[SplitModel, int]:
        """A trained copy of `model` and the steps it took."""
        model = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        steps = 0
        for x, y in self.batches(client, round):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).logits, y)
            if extra is not None:
                loss = loss + extra(model, x, y)
            loss.backward()
            if edit_gradients is not None:
                edit_gradients(model)
            optimizer.step()
            steps += 1
        return model, steps

    def batches(
        self, client: int, round: int, phase: int = 0, algorithm: str = "train", epochs: int | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The client's batches in the plan's order, without any padding."""
        rows = self.federation.indices[client]
        key = batching.phase_key(self.seed, round, algorithm, phase, client)
        draw = batching.DrawArguments(len(rows), self.batch_size, epochs or self.epochs, False, key)
        (schedule,) = batching.draw_all([draw])
        found = []
        for positions, weight in zip(schedule.positions, schedule.weight, strict=True):
            mine = rows[positions[weight > 0]]
            # normalized in float32, as the data layer does it; tests/data holds that to plain arithmetic
            x = self.federation.transform(self.federation.train.x[mine]).double()
            found.append((x, self.federation.train.y[mine]))
        return found


def average(models: list[SplitModel], shares: list[float]) -> SplitModel:
    """A model whose parameters and running statistics are the weighted means of the models'."""
    mean = copy.deepcopy(models[0])
    for name, value in mean.state_dict().items():
        scaled = [m.state_dict()[name] * s for m, s in zip(models, shares, strict=True)]
        value.copy_(torch.stack(scaled).sum(0) / sum(shares))
    return mean


def values(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's parameters by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}
