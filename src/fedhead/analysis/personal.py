"""The clients' own models, one beside the other, whatever their architectures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from fedhead.core.batch import PARTS, Output
from fedhead.executors.forward import MemoryBudget, map_models
from fedhead.models.split_model import SplitModel, load, weights

if TYPE_CHECKING:
    from fedhead.data.pool import Pool
    from fedhead.engine.simulation import Simulation


@torch.no_grad()
def personal_models(simulation: Simulation, round: int) -> dict[int, SplitModel]:
    """The model that each client uses for itself after a round, as a module in evaluation mode."""
    found: dict[int, SplitModel] = {}
    method = simulation.method
    for job in simulation.jobs(method, simulation.server, simulation.states, simulation.holders, round):
        for place, client in enumerate(job.clients):
            model = copy.deepcopy(job.program.task.model)
            load(model, method.personal_model(job.program.client(job.inputs(place))).part(*PARTS))
            found[client] = model.eval()
    return dict(sorted(found.items()))


def outputs(
    models: Mapping[int, SplitModel],
    assign: Sequence[int],
    pool: Pool,
    rows: Tensor,
    budget: MemoryBudget | None,
    chunk: int = 256,
) -> dict[int, Output]:
    """What each client's model says of the same samples, not augmented; with a budget, an architecture's stacked.

    `assign` gives each client the number of its architecture.
    """
    found: dict[int, Output] = {}
    for group in sorted({assign[client] for client in models}):
        mine = [client for client in models if assign[client] == group]
        one, own = models[mine[0]].eval(), [weights(models[client]) for client in mine]
        parts = [
            map_models(lambda w, x, m=one: functional_call(m, dict(w), (x,)), own, pool.view(part, None), budget)  # type: ignore[misc]  # defaults bind the loop's values
            for part in torch.split(rows.to(pool.device), chunk)
        ]
        for client, each in zip(mine, zip(*parts, strict=True), strict=True):
            found[client] = Output(*(torch.cat(part) for part in zip(*each, strict=True)))
    return {client: found[client] for client in models}


def agreement(z: Tensor, y: Tensor, client: Tensor) -> float:
    """How often a feature's nearest neighbor among the other clients' features is of its class, in per cent.

    Clients whose features mean the same have 100; features that only their own client understands fall to chance.
    """
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    nearest = (unit @ unit.T).masked_fill(client[:, None] == client[None, :], -2.0).argmax(dim=1)
    return 100 * float((y[nearest] == y).double().mean())
