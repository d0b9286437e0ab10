"""`fedhead.load`: a run, read from its folder."""

from __future__ import annotations

import copy
import functools
import glob
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import Upload
from fedhead.api.result import Result
from fedhead.api.result_list import Results
from fedhead.api.trained import TrainedState
from fedhead.core.components.component_syntax import read_call
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import Optimizer
from fedhead.data.federation.federation import Federation
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
from fedhead.recipes.experiment import architectures, build_experiment
from fedhead.recipes.parts import COMPONENT_KINDS, component
from fedhead.recipes.recipe_data import with_validation
from fedhead.runs import python_components, read_runs, reopen
from fedhead.runs.python_components import Objects
from fedhead.runs.run_folder import RunFolder
from fedhead.stages import STAGES


def load(
    path: str | PathLike[str],
    *,
    federation: Federation | None = None,
    model: SplitModel | Sequence[SplitModel] | None = None,
    method: Method | None = None,
    stages: Sequence[Stage] = (),
    uploads: Sequence[Upload] = (),
    optimizer: Optimizer | None = None,
    data: str | PathLike[str] | None = None,
    device: str = "auto",
) -> Result:
    """Load a run from its folder, whether `fedhead run` or `fedhead.run` wrote it, finished or not.

    History, accuracies and the partition are read at once. Weights, and for some questions the data, are read when
    they are needed; what no recipe can hold has to be given again then, as it was given to `fedhead.run`.

    Args:
        path: The run folder.
        federation: The data of a run that was begun in Python; only for what needs samples (`calibrate`, `confusion`).
        model: The model, or models, of such a run, if they were modules.
        method: The method of such a run, if it was of a class that can't be imported.
        stages: The stages of such a run, likewise.
        uploads: The uploads of such a run, likewise, all of them.
        optimizer: The optimizer of such a run, if it was an object with settings that no recipe has.
        data: The folder of the data sets, for a run of a recipe; None: the default one.
        device: Where to compute: "auto", "cpu" or "cuda".

    Returns:
        The result, as `fedhead.run` returns it.

    Raises:
        BadInput: If the folder holds no run.
    """
    folder = RunFolder.open(Path(path))
    record = read_runs.read_run(folder)
    models = () if model is None else (model,) if isinstance(model, SplitModel) else tuple(model)
    given = _Given(federation, models, method, tuple(stages), tuple(uploads), optimizer, data, device)
    return Result(record, lambda: _trained(folder, record, given))


# Objects of a run that are not needed to open it: stages ask for data, uploads and optimizer when they are run.
LATER = {"federation", "assign", "upload", "aggregator", "sampler", "metric", "optimizer", "weights"}


class _Given(NamedTuple):
    """Arguments of `load`."""

    federation: Federation | None
    models: tuple[SplitModel, ...]
    method: Method | None
    stages: tuple[Stage, ...]
    uploads: tuple[Upload, ...]
    optimizer: Optimizer | None
    data: str | PathLike[str] | None
    device: str


def _trained(folder: RunFolder, record: read_runs.Run, given: _Given) -> TrainedState:
    """Open a folder's checkpoint; the data is not read yet, if the folder says what its samples look like."""
    number, state = reopen.checkpoint_state(folder)
    experiment = _experiment(folder, record.environment, given)
    device = select.device(given.device)

    def with_data() -> Transport:
        needed = ("federation", "upload", "optimizer")
        stored: Objects = record.environment.get("objects", {})
        objects = {name: line for name, line in stored.items() if name.split(" ")[0] in needed}
        kinds = {"federation": given.federation, "upload": given.uploads, "optimizer": given.optimizer}
        python_components.need(folder.path, objects, {kind for kind, value in kinds.items() if value})
        if given.federation is not None:
            federation = with_validation(given.federation, record.recipe)
        else:
            federation = recipe_data.federation(record.recipe, None if given.data is None else str(given.data))
        return reopen.restored(folder, experiment, federation, state, number, given.device)

    clients = _without_data(experiment, record, device) or with_data().clients
    server = state["server"].to(device)
    states = None
    if "accepted" not in state:  # a run over Flower: its clients' states are at their sites
        kept = {int(k): own.to(device) for k, own in state["clients"].items()}
        states = ClientStates(clients.initial_state, kept)
    algorithms = {stage.name: stage for stage in experiment.stages}
    stages = {}
    for name, left in folder.stage_states().items():
        left = left.to(device)
        weights = global_model(algorithms[name], left, clients.task)
        stages[name] = StageResult(name, left, None, record.stage_rows.get(name, {}), weights)
    return TrainedState(clients, server, states, number, stages, algorithms, functools.cache(with_data))


def _without_data(experiment: Experiment, record: read_runs.Run, device: torch.device) -> Clients | None:
    """Return a run's clients without their samples; None where the method needs more, or the folder says too little."""
    begun = record.environment
    if "inputs" not in begun or record.counts is None:
        return None
    blank = inputs_record.blank(begun["inputs"], len(record.counts))
    bf16 = begun.get("precision") == "bf16"
    try:
        experiment.check_data(blank, stages=False)
        clients = Clients(experiment, blank, device, bf16=bf16, all_here=False)
    except BadInput:
        return None
    clients.counts = torch.as_tensor(record.counts, dtype=clients.dtype, device=device)
    return clients


def _experiment(folder: RunFolder, begun: Mapping[str, Any], given: _Given) -> Experiment:
    """Build the run's experiment, with the given objects in place of those that no recipe can hold."""
    recipe, stored = folder.recipe, begun.get("objects", {})
    inputs = inputs_record.inputs(begun["inputs"]) if "inputs" in begun else recipe_data.inputs(recipe)
    stages = {stage.name: stage for stage in given.stages}
    replaced = {"method": given.method, "model": given.models, "optimizer": given.optimizer, "upload": given.uploads}
    there = {kind for kind, value in replaced.items() if value}
    missing = {name: line for name, line in stored.items() if name.removeprefix("stage ") not in stages}
    python_components.need(folder.path, missing, {*there, *LATER})
    held = {*there, *({"head"} if given.models else ())}
    objects = {*python_components.kinds(stored), *(f"stage {name}" for name in stages)}
    reopen.check_code(folder, {"method", "stage", "model", "head", "upload", "aggregator", "sampler"} - held, objects)
    components: dict[str, Any] = {"optimizer": given.optimizer, "callbacks": ()}  # which no finished run calls
    components["metrics"] = [name for name in recipe.metrics if f"metric {name}" not in stored]
    for part in COMPONENT_KINDS:
        if part.key in ("aggregator", "sampler", "uploads"):
            texts = part.listed(getattr(recipe, part.key))
            known = [text for text in texts if f"{part.kind} {read_call(text, part.kind).name}" not in stored]
            components[part.key] = known if part.many else known[0] if known else None
    components |= {key: value for key, value in (("method", given.method), ("uploads", given.uploads)) if value}
    components["stages"] = [
        stages.get(name) or component(STAGES, name, recipe.stage_parameters.get(name, {}), recipe.folders)
        for name in recipe.stages
    ]

    def make_models(head: str | None) -> Sequence[SplitModel]:
        models = [copy.deepcopy(model) for model in given.models] or architectures(recipe, inputs, head)
        freeze(models, recipe.freeze)
        if (initial := folder.initial_weights()) is not None:
            for model, w in zip(models, initial, strict=True):
                load_weights(model, w)
        return models

    assign = json.loads(stored.get("assign", "null"))
    return build_experiment(recipe, inputs, given=components, make_models=make_models, assign=assign)


def load_all(pattern: str | PathLike[str] | Sequence[str | PathLike[str]], **given: Any) -> Results:
    """Load all runs of a pattern such as "runs/*", or of several.

    Args:
        pattern: Run folders or folders that hold them, by a pattern or a list of such.
        **given: Further arguments of `load`, for all runs.

    Returns:
        The results, sorted by their folders.

    Raises:
        BadInput: If there is no run.
    """
    patterns = [pattern] if isinstance(pattern, str | PathLike) else list(pattern)
    places = [Path(found) for one in patterns for found in sorted(glob.glob(str(one)))]
    folders = read_runs.run_folders([place for place in places if place.is_dir()])
    if not folders:
        raise BadInput(f"{', '.join(map(str, patterns))}: there is no run folder; give a pattern such as 'runs/*'")
    return Results(load(folder, **given) for folder in folders)
