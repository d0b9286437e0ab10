"""A trained run, opened again from its folder: to calibrate it, to analyse it, to run further stages on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.metrics.records import StageResult
from fedhead.recipes import components
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import Recipe
from fedhead.runs import python_components, recorded_code
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, damaged


@dataclass(frozen=True)
class Trained:
    """A run as its checkpoint left it.

    Args:
        path: The run folder.
        recipe: What was run.
        experiment: The same, built.
        simulation: The trained federation: data, model, states of server and clients.
        round: The round after which the checkpoint was taken.
    """

    path: Path
    recipe: Recipe
    experiment: Experiment
    simulation: Simulation
    round: int

    @property
    def executor(self) -> Executor:
        """The executor that trains its clients."""
        return self.simulation.executor

    def run(self, stage: Stage) -> StageResult:
        """Run a stage; the trained run stays as it is.

        Args:
            stage: The stage.

        Returns:
            What the stage made of the run.
        """
        return run_stage(self.simulation, stage)


def check_code(folder: RunFolder, kinds: Collection[str] | None = None, without: Collection[str] = ()) -> None:
    """Refuse a run whose own code is missing; where it has changed since, that is logged.

    Args:
        folder: The run folder.
        kinds: Only components of these kinds, such as "method"; None: of all.
        without: Leave out components of these kinds, and those of a kind and name, as `components.sources` does.

    Raises:
        BadInput: With what to install, or where to put it.
    """
    recorded = folder.environment().get("components", [])
    recorded = [one for one in recorded if (kinds is None or one["kind"] in kinds) and one["kind"] not in without]
    recorded_code.check_present(folder.recipe, recorded, folder.path, recorded_code.own_executor(recorded))
    if lines := recorded_code.changes(recorded, components.sources(folder.recipe, kinds=kinds, without=without)):
        warn_once(f"{', '.join(lines)} changed since {folder.path} was begun: what is seen now is the new code's")


def reopen(path: str | Path, data: str | Path | None = None, device: str = "auto") -> Trained:
    """Open a trained run for stages and analyses.

    Args:
        path: The run folder; it must have a checkpoint.
        data: The folder of the data sets; None: the default one.
        device: Where to compute.

    Raises:
        BadInput: If the run has no checkpoint, or its code or data are missing or have changed.
    """
    folder = RunFolder.open(path)
    number, state = checkpoint_state(folder)
    needed = ("federation", "model", "method", "stage", "upload", "optimizer")
    python_components.need(folder.path, folder.environment().get("objects", {}), needed)
    check_code(folder)
    # analyses look into the extractor's layers, which kept features pass by
    experiment, federation = prepare(replace(folder.recipe, cache_features=None), data)
    simulation = restored(folder, experiment, federation, state, number, device)
    return Trained(folder.path, folder.recipe, experiment, simulation, number)


def restored(
    folder: RunFolder,
    experiment: Experiment,
    federation: Federation,
    state: Tree,
    number: int,
    device: str,
) -> Simulation:
    """Return the simulation of a run as its checkpoint left it, with its data.

    Args:
        folder: The run folder.
        experiment: What was run.
        federation: The clients' data, refused where it is not that of the run.
        state: The checkpoint's.
        number: The round after which it was the state.
        device: Where to compute.
    """
    begun = folder.environment()
    precision = "bf16" if begun.get("precision") == "bf16" else "fp32"
    simulation = Simulation(experiment, federation, Compute(device=device, precision=precision))
    folder.save_split(federation)  # refuses data that has changed since
    simulation.restore(state["server"], {int(k): kept for k, kept in state["clients"].items()}, number)
    return simulation.using(_executor(begun, simulation, folder.recipe.folders))


def _executor(begun: Mapping[str, Any], simulation: Simulation, folders: Sequence[Path]) -> Executor:
    """Return the executor that a run was begun with, or the loop where that one can't run here."""
    name = str(begun.get("executor", "loop"))
    # what a GPU does best a CPU may not do at all; a run over Flower was trained by its sites
    if name == "flower" or begun.get("device") != simulation.device.type:
        name = "loop"
    return select.by_name(name, simulation, begun.get("compile", "auto"), folders)


def fresh(trained: Trained) -> Simulation:
    """Return the same run before its first round."""
    clients = trained.simulation.clients
    compute = Compute(device=str(clients.device), executor="loop", precision="bf16" if clients.bf16 else "fp32")
    return Simulation(trained.experiment, clients.federation, compute)


def checkpoint_state(folder: RunFolder) -> tuple[int, Tree]:
    """Return the round that a run ends with, or has come to, and the state after it: server and clients."""
    path = folder.path / CHECKPOINT
    if not path.exists() and folder.finished:
        raise damaged(f"{folder.path} is finished and has no {CHECKPOINT} any more")
    if not path.exists():
        raise BadInput(
            f"{folder.path} has no {CHECKPOINT} yet: let the run come to its end first (fedhead run --resume)"
        )
    state, facts = folder.checkpoint.load()
    kept = facts.get("kept")
    return (facts["round"], state) if kept is None else (kept, state.get("kept", state))
