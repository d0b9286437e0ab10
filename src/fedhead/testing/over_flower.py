"""Comparison of a simulation with the same short run over Flower's messages, within one process."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedhead.core.system.errors import FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.rounds import run
from fedhead.engine.rounds.simulation import Simulation
from fedhead.flower.site.site_store import SiteStore
from fedhead.testing.checks import CheckFailed, require
from fedhead.testing.inprocess import InProcessFederation
from fedhead.testing.small import small_federation
from fedhead.testing.trial import CPU, Trial, difference, state_tensors


def compare_with_simulation(trial: Trial) -> None:
    """Raise `CheckFailed` if a run over Flower differs by more than 1e-6 from a simulation, both in float32."""
    trial, owner, federation = dataclasses.replace(trial, dtype=torch.float32), trial.owner, small_federation()
    experiment = trial.experiment([] if trial.stage is None else [trial.stage])
    simulation = Simulation(experiment, federation, CPU)
    expected = run(simulation)
    with tempfile.TemporaryDirectory() as folder:
        world = InProcessFederation(federation, {"own": trial.models[0]}, experiment, Path(folder))
        grid = world.grid()
        for node, indices in zip(list(grid.nodes), federation.indices, strict=True):
            if not len(indices):
                del grid.nodes[node]  # a site without samples only reports this
        transport = world.transport(grid, round_seconds=60.0, attempts=1)
        try:
            actual = run(transport)
        except FedheadError as error:
            raise CheckFailed(
                f"{owner} runs in a simulation and fails over Flower's messages: a site knows only its own data, so "
                f"that task.sizes and task.pool are empty there ({error})"
            ) from error
        kept = {
            k: SiteStore(world.folder / "state", world.identity, f"site-{k}").load(f"state-{transport.states[k]}")
            for k in simulation.states.kept
        }
    gap = difference(_left(expected, simulation.states.kept), _left(actual, kept), 1e-6)
    require(not gap, f"{owner} gives other numbers over Flower's messages than in a simulation ({gap})")


def _left(result: FinishedRun, clients: Mapping[int, Tree | None]) -> dict[str, Tensor]:
    stages = Tree({f"after {name}": stage.server for name, stage in result.stages.items()})
    return state_tensors(result.server.replace(stages), {k: state or Tree() for k, state in clients.items()})
