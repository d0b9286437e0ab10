"""`fedhead.load`: loading of runs from their folders."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import Upload
from fedhead.api.result import Result
from fedhead.api.result_list import Results
from fedhead.api.trained import TrainedState
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import Optimizer
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.data.sources.datasets import DATASETS
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import global_model
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.transport import Transport
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors import select
from fedhead.metrics.records import StageResult
from fedhead.models.split_model import SplitModel, freeze
from fedhead.models.split_model import load as load_weights
from fedhead.recipes import inputs_record, recipe_data
from fedhead.recipes.component_kinds import component
from fedhead.recipes.experiment import architectures, build_experiment
from fedhead.runs import python_components, reopen
from fedhead.runs.python_components import Objects
from fedhead.runs.read_runs import Run, read_run, run_folders
from fedhead.runs.run_folder import RunFolder
from fedhead.stages import STAGES

_CODE = ("method", "stage", "model", "head", "upload")  # kinds of components that a trained run needs


def load(
    path: str | PathLike[str],
    *,
    federation: Federation | None = None,
    model: SplitModel | Sequence[SplitModel] | None = None,
    method: Method | None = None,
    stages: Sequence[Stage] = (),
    uploads: Sequence[Upload] = (),
    optimizer: Optimizer | None = None,
    data_dir: str | PathLike[str] | None = None,
    device: str = "auto",
) -> Result:
    """Load a finished or unfinished run of `fedhead run` or `fedhead.run` from its folder.

    History, accuracies and the partition are read immediately. Weights, and data if required, are loaded lazily.
    Python objects that a recipe can't store have to be passed again, as to `fedhead.run`.

    Args:
        path: Run folder.
        federation: Data of a run that was started in Python; needed only for `calibrate` and `confusion`.
        model: Model or models of such a run, if they were modules.
        method: Method of such a run, if its class can't be imported.
        stages: Stages of such a run, if their classes can't be imported.
        uploads: All uploads of such a run, if their classes can't be imported.
        optimizer: Optimizer of such a run, if a recipe can't store it.
        data_dir: Folder of the data sets, for a run of a recipe; None: the default one.
        device: Device: "auto", "cpu" or "cuda".

    Returns:
        The result, as returned by `fedhead.run`.

    Raises:
        BadInput: If the folder holds no run.
    """
    if not Path(path).exists() and path in DATASETS:
        raise BadInput(f"{path} is a data set, no run folder: use fedhead.Federation.load({path!r})")
    folder = RunFolder.open(Path(path))
    record = read_run(folder)
    models = () if model is None else (model,) if isinstance(model, SplitModel) else tuple(model)
    given = (federation, models, method, tuple(stages), tuple(uploads), optimizer)
    return Result(record, _LoadedRun(folder, record, *given, data_dir, device).trained)


@dataclass(frozen=True)
class _LoadedRun:
    """Run folder with the arguments of `load`."""

    folder: RunFolder
    record: Run
    federation: Federation | None
    models: tuple[SplitModel, ...]
    method: Method | None
    stages: tuple[Stage, ...]
    uploads: tuple[Upload, ...]
    optimizer: Optimizer | None
    data_dir: str | PathLike[str] | None
    device: str

    @property
    def objects(self) -> Objects:
        """Descriptions of the run's Python objects that a recipe can't store."""
        stored: Objects = self.record.environment.get("objects", {})
        return stored

    def trained(self) -> TrainedState:
        """Load the checkpoint; data is loaded only if the folder has no input spec."""
        number, state = reopen.checkpoint_state(self.folder)
        experiment, device = self._experiment(), select.device(self.device)
        with_data = functools.cache(lambda: self._with_data(experiment, number, state))
        remote = "accepted" in state  # over Flower: data and client states are at the sites
        clients = self._without_data(experiment, device, remote) or with_data().clients
        states = None
        if not remote:
            kept = {int(k): tree.to(device) for k, tree in state["clients"].items()}
            states = ClientStates(clients.initial_state, kept)
        algorithms = {stage.name: stage for stage in experiment.stages}
        stages = {}
        for name, server in self.folder.stage_states().to(device).items():
            weights = global_model(algorithms[name], server, clients.task)
            stages[name] = StageResult(name, server, None, self.record.stage_rows.get(name, {}), weights)
        return TrainedState(clients, state["server"].to(device), states, number, stages, algorithms, with_data)

    def _experiment(self) -> Experiment:
        """Build the run's experiment with the given Python objects."""
        recipe, objects = self.folder.recipe, self.objects
        stages = {stage.name: stage for stage in self.stages}
        given = {"method": self.method, "model": self.models, "upload": self.uploads}
        available = {kind for kind, value in given.items() if value} | {f"stage {name}" for name in stages}
        python_components.need(self.folder.path, objects, ("method", "model", "stage"), available)
        reopen.check_code(self.folder, _CODE, without=python_components.kinds([*objects, *available]))
        known = replace(python_components.without(recipe, objects), callbacks=())  # not called after a run
        components: dict[str, Any] = {"optimizer": self.optimizer}
        components |= {key: value for key, value in (("method", self.method), ("uploads", self.uploads)) if value}
        components["stages"] = [
            stages.get(name) or component(STAGES, name, recipe.stage_parameters.get(name, {}), recipe.folders)
            for name in recipe.stages
        ]
        inputs = inputs_record.inputs(self.record.environment["inputs"])

        def make_models(head: str | None) -> Sequence[SplitModel]:
            models = [copy.deepcopy(model) for model in self.models] or architectures(recipe, inputs, head)
            freeze(models, recipe.freeze)
            if (initial := self.folder.initial_weights()) is not None:
                for model, w in zip(models, initial, strict=True):
                    load_weights(model, w)
            return models

        assign = json.loads(objects.get("assign", "null"))
        return build_experiment(known, inputs, given=components, make_models=make_models, assign=assign)

    def _without_data(self, experiment: Experiment, device: torch.device, remote: bool) -> Clients | None:
        """Return the clients without samples; None if the method needs samples, or the folder lacks their counts."""
        counts, environment = self.record.counts, self.record.environment
        if counts is None and not remote:
            return None
        count = self.folder.recipe.clients if counts is None else len(counts)
        blank = inputs_record.blank(environment["inputs"], count)
        try:
            experiment.check_data(blank, stages=False)
            skeleton = Clients(experiment, blank, device, bf16=environment.get("precision") == "bf16", all_here=False)
        except BadInput:
            return None
        if counts is not None:
            skeleton.counts = torch.as_tensor(counts, dtype=skeleton.dtype, device=device)
        return skeleton

    def _with_data(self, experiment: Experiment, number: int, state: Tree) -> Transport:
        """Return the trained simulation with its data."""
        given = {"federation": self.federation, "upload": self.uploads, "optimizer": self.optimizer}
        available = {kind for kind, value in given.items() if value}
        python_components.need(self.folder.path, self.objects, given, available)
        recipe = self.record.recipe
        if self.federation is not None:
            federation = recipe_data.with_validation(self.federation, recipe)
        else:
            federation = recipe_data.federation(recipe, None if self.data_dir is None else Path(self.data_dir))
        return reopen.restored(self.folder, experiment, federation, state, number, self.device)


def load_all(pattern: str | PathLike[str] | Sequence[str | PathLike[str]], **given: Any) -> Results:
    """Load all runs that match one or several patterns such as "runs/*".

    Args:
        pattern: Pattern, or list of patterns, of run folders or folders of run folders.
        **given: Further arguments of `load`, for all runs.

    Returns:
        The results, sorted by folder.

    Raises:
        BadInput: If there is no run.
    """
    patterns = [pattern] if isinstance(pattern, str | PathLike) else pattern
    return Results(load(folder, **given) for folder in run_folders(map(Path, patterns)))
