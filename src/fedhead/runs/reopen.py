"""Trained run loaded from its folder, for calibration, analyses and further stages."""

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
    """Trained run, restored from its checkpoint.

    Args:
        path: Run folder.
        recipe: Recipe of the run.
        experiment: Experiment built from the recipe.
        simulation: Trained simulation: data, model, states of server and clients.
        round: Round of the checkpoint.
    """

    path: Path
    recipe: Recipe
    experiment: Experiment
    simulation: Simulation
    round: int

    @property
    def executor(self) -> Executor:
        """Executor that trains the clients."""
        return self.simulation.executor

    def run(self, stage: Stage) -> StageResult:
        """Run a stage without changing the trained run.

        Args:
            stage: Stage to run.

        Returns:
            The result of the stage.
        """
        return run_stage(self.simulation, stage)


def check_code(folder: RunFolder, kinds: Collection[str] | None = None, without: Collection[str] = ()) -> None:
    """Check that the user's code of a run is available; log a warning if it has changed.

    Args:
        folder: Run folder.
        kinds: Kinds of components to check, such as "method"; None: all.
        without: Kinds, or kinds and names, of components to skip, as in `components.sources`.

    Raises:
        BadInput: With the package to install, or the location of the file.
    """
    recorded = folder.environment().get("components", [])
    recorded = [item for item in recorded if (kinds is None or item["kind"] in kinds) and item["kind"] not in without]
    recorded_code.check_present(folder.recipe, recorded, folder.path, recorded_code.own_executor(recorded))
    if lines := recorded_code.changes(recorded, components.sources(folder.recipe, kinds=kinds, without=without)):
        warn_once(f"{', '.join(lines)} changed since {folder.path} was begun: what is seen now is the new code's")


def reopen(path: str | Path, data_dir: str | Path | None = None, device: str = "auto") -> Trained:
    """Open a trained run for stages and analyses.

    Args:
        path: Run folder with a checkpoint.
        data_dir: Folder of the data sets; None: the default one.
        device: Device.

    Raises:
        BadInput: If the run has no checkpoint, or its code or data are missing or have changed.
    """
    folder = RunFolder.open(path)
    number, state = checkpoint_state(folder)
    needed = ("federation", "model", "method", "stage", "upload", "optimizer")
    python_components.need(folder.path, folder.environment().get("objects", {}), needed)
    check_code(folder)
    # No cached features: analyses read the layers of the extractor.
    experiment, federation = prepare(replace(folder.recipe, cache_features=None), data_dir)
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
    """Restore the simulation of a run from its checkpoint.

    Args:
        folder: Run folder.
        experiment: Experiment of the run.
        federation: Data of the clients; must be that of the run.
        state: State of the checkpoint.
        number: Round of the checkpoint.
        device: Device.
    """
    begun = folder.environment()
    precision = "bf16" if begun.get("precision") == "bf16" else "fp32"
    simulation = Simulation(experiment, federation, Compute(device=device, precision=precision))
    folder.save_split(federation)  # raises an error if the data has changed
    simulation.restore(state["server"], {int(k): kept for k, kept in state["clients"].items()}, number)
    return simulation.using(_executor(begun, simulation, folder.recipe.folders))


def _executor(begun: Mapping[str, Any], simulation: Simulation, folders: Sequence[Path]) -> Executor:
    """Return the executor that a run was started with, or the loop if it is not available here."""
    name = str(begun.get("executor", "loop"))
    # A GPU executor may not run on a CPU; a run over Flower has no executor.
    if name == "flower" or begun.get("device") != simulation.device.type:
        name = "loop"
    return select.by_name(name, simulation, begun.get("compile", "auto"), folders)


def fresh(trained: Trained) -> Simulation:
    """Return the simulation of the run before its first round."""
    clients = trained.simulation.clients
    compute = Compute(device=str(clients.device), executor="loop", precision="bf16" if clients.bf16 else "fp32")
    return Simulation(trained.experiment, clients.federation, compute)


def checkpoint_state(folder: RunFolder) -> tuple[int, Tree]:
    """Return the last or best round of a run, and the states of server and clients after it."""
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
