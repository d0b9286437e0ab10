"""Personal models of the clients, of any architecture."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedhead.core.training.batch import PARTS, Output
from fedhead.models.split_model import SplitModel, load

if TYPE_CHECKING:
    from fedhead.data.pool import Pool
    from fedhead.engine.rounds.simulation import Simulation


@torch.no_grad()
def personal_models(simulation: Simulation, round: int) -> dict[int, SplitModel]:
    """Return the personal model of each client after a round, in evaluation mode."""
    models: dict[int, SplitModel] = {}
    method = simulation.experiment.method
    for job in simulation.jobs(method, simulation.server, simulation.states, simulation.clients.holders, round):
        for index, client in enumerate(job.clients):
            model = copy.deepcopy(job.program.task.model)
            load(model, method.personal_model(job.program.client(job.inputs(index))).part(*PARTS))
            models[client] = model.eval()
    return dict(sorted(models.items()))


@torch.no_grad()
def outputs(models: Mapping[int, SplitModel], pool: Pool, rows: Tensor, chunk: int = 256) -> dict[int, Output]:
    """Compute the outputs of each client's model on the same samples, not augmented.

    Args:
        models: Model of each client, in evaluation mode.
        pool: Samples.
        rows: Rows of the pool.
        chunk: Samples per forward pass.
    """
    results: dict[int, Output] = {}
    for client, model in models.items():
        parts = [model(pool.view(part, None)) for part in torch.split(rows.to(pool.device), chunk)]
        results[client] = Output(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return results


def agreement(z: Tensor, y: Tensor, client: Tensor) -> float:
    """Return the percentage of features whose nearest neighbor at another client has the same class.

    It is 100 if all clients share a feature space, and at chance level if their spaces are unrelated.
    """
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    nearest = (unit @ unit.T).masked_fill(client[:, None] == client[None, :], -2.0).argmax(dim=1)
    return 100 * float((y[nearest] == y).double().mean())
