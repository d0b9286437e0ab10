"""The clients' own models, one beside the other, whatever their architectures."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedhead.models.split import Split, load
from fedhead.types import PARTS, Output

if TYPE_CHECKING:
    from fedhead.data.pool import Pool
    from fedhead.engine.simulation import Simulation


@torch.no_grad()
def personal_models(simulation: Simulation, round: int) -> dict[int, Split]:
    """The model that each client uses for itself after a round, as a module in evaluation mode."""
    found: dict[int, Split] = {}
    method = simulation.method
    for job in simulation.jobs(method, simulation.server, simulation.memory, simulation.holders, round):
        for place, client in enumerate(job.clients):
            model = copy.deepcopy(job.program.task.model)
            load(model, method.personal_model(job.program.me(job.sight(place))).part(*PARTS))
            found[client] = model.eval()
    return dict(sorted(found.items()))


@torch.no_grad()
def outputs(model: Split, pool: Pool, rows: Tensor, chunk: int = 256) -> Output:
    """What a model says of these samples, not augmented."""
    parts = [model(pool.view(part.to(pool.device), None)) for part in torch.split(rows, chunk)]
    return Output(*(torch.cat(part) for part in zip(*parts, strict=True)))


def agreement(z: Tensor, y: Tensor, client: Tensor) -> float:
    """How often a feature's nearest neighbour among the other clients' features is of its class, in per cent.

    Clients whose features mean the same have 100; features that only their own client understands fall to chance.
    """
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    nearest = (unit @ unit.T).masked_fill(client[:, None] == client[None, :], -2.0).argmax(dim=1)
    return 100 * float((y[nearest] == y).double().mean())
