"""Runs in their folders: begun or resumed from Python, and loaded again."""

from __future__ import annotations

import copy
import functools
import glob
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage, bind
from fedhead.api.record import Record
from fedhead.api.result import Result
from fedhead.api.result_list import Results
from fedhead.api.trained import TrainedState
from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.rounds import Snapshot
from fedhead.engine.rounds.transport import AnyTransport
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors import select
from fedhead.loggers.progress import progress as show_progress
from fedhead.methods import METHODS
from fedhead.metrics.records import StageResult
from fedhead.models.split_model import SplitModel, weights
from fedhead.models.split_model import load as load_weights
from fedhead.recipes import build, inputs_record
from fedhead.recipes.experiment import Experiment
from fedhead.recipes.recipe_data import Inputs, with_validation
from fedhead.runs import python_components, read_runs, reopen
from fedhead.runs.python_components import Objects
from fedhead.runs.run import Compute, carry_out
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import INITIAL
from fedhead.runs.run_writer import RunWriter
from fedhead.stages import STAGES


def run_in_folder(
    experiment: Experiment,
    given: Objects,
    federation: Federation,
    out: Path,
    settings: Compute,
    resume: bool,
    progress: bool,
    assign: Sequence[int] | None,
    on_round: Callable[[Snapshot], Any] | None,
) -> Result:
    """Simulate an experiment that was made in Python in a run folder; the arguments are those of `fedhead.run`."""
    name = settings.executor if isinstance(settings.executor, str) else None
    own = None if name is None or name == "auto" or name in select.BUILT_IN else name
    run = RunWriter(experiment.recipe, out, resume=resume, executor=own, objects=given, loggers=settings.loggers)
    if run.result is not None:
        parts = {"model": experiment.models, "method": experiment.method, "stages": experiment.stages}
        return load(out, federation=federation, device=settings.device, **parts)  # type: ignore[arg-type]  # by name
    experiment.check(Inputs.of(federation))
    experiment.check_data(federation)
    begun = [RunFolder.open(out).checkpoint.round] if resume and RunFolder.holds_run(out) else []
    threads = torch.get_num_threads()
    try:
        with show_progress(experiment.recipe.rounds, not progress, resumed=begun) as tell:
            finished = carry_out(
                run,
                experiment,
                federation,
                settings,
                assign=assign,
                on_row=lambda row: tell(experiment.recipe.method, row),
                on_round=on_round or (lambda now: None),
            )
    finally:
        torch.set_num_threads(threads)  # the folder's number was for this run
    return Result.of(finished, experiment, out)


# -- loading ------------------------------------------------------------------------------------------
def load(
    path: str | PathLike[str],
    *,
    federation: Federation | None = None,
    model: SplitModel | Sequence[SplitModel] | None = None,
    method: Method | None = None,
    stages: Sequence[Stage] = (),
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
        data: The folder of the data sets, for a run of a recipe; None: the default one.
        device: Where to compute: "auto", "cpu" or "cuda".

    Returns:
        The result, as `fedhead.run` returns it.

    Raises:
        BadInput: If the folder holds no run.
    """
    folder = RunFolder.open(Path(path))
    found = folder.result() or {}
    rows = folder.metrics()
    record = Record(
        recipe=folder.recipe,
        rows=rows,
        stage_rows=found.get("stages", {}),
        executor=str(folder.environment().get("executor", "")),
        preparing=float(found.get("preparing") or 0.0),
        compiled_from=folder.environment().get("compiled_from"),
        counts=folder.partition.counts(),
        class_names=folder.partition.class_names(),
        client_names=folder.partition.client_names(),
        path=folder.path,
        state=read_runs.Run(folder.path, folder.recipe, rows, folder.result(), folder.diverged).state,
        split=folder.partition.fingerprint(),
    )
    models = () if model is None else (model,) if isinstance(model, SplitModel) else tuple(model)
    given = _Given(federation, models, method, tuple(stages), data, device)
    return Result(record, lambda: _trained(folder, record, given))


class _Given(NamedTuple):
    """What `load` was given."""

    federation: Federation | None
    models: tuple[SplitModel, ...]
    method: Method | None
    stages: tuple[Stage, ...]
    data: str | PathLike[str] | None
    device: str


def _trained(folder: RunFolder, record: Record, given: _Given) -> TrainedState:
    """Open a folder's checkpoint; the data is not read yet, if the folder says what its samples look like."""
    number, state = reopen.checkpoint_state(folder)
    begun = folder.environment()
    experiment = _experiment(folder, begun, given)
    assign = json.loads(begun.get("objects", {}).get("assign", "null"))
    device = select.device(given.device)

    def with_data() -> AnyTransport:
        federation = given.federation
        if federation is not None:
            federation = with_validation(federation, folder.recipe)
        else:
            python_components.need(folder.path, {name: "" for name in begun.get("objects", {}) if name == "federation"})
            federation = experiment.federation(None if given.data is None else str(given.data))
        return reopen.restored(folder, experiment, federation, state, number, given.device, assign)

    clients = _without_data(experiment, begun, record, assign, device) or with_data().clients
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


def _without_data(
    experiment: Experiment, begun: Mapping[str, Any], record: Record, assign: Any, device: torch.device
) -> Clients | None:
    """The clients of a run without their samples; None where the method needs more, or the folder says too little."""
    if "inputs" not in begun or record.counts is None:
        return None
    blank = inputs_record.blank(begun["inputs"], len(record.counts))
    assign = assign or [k % len(experiment.models) for k in range(len(blank))]
    try:
        clients = experiment.clients(blank, experiment.models, assign, device)
    except BadInput:
        return None
    clients.counts = torch.as_tensor(record.counts, dtype=clients.dtype, device=device)
    clients.bf16 = begun.get("precision") == "bf16"
    return clients


def _experiment(folder: RunFolder, begun: Mapping[str, Any], given: _Given) -> Experiment:
    """Build what was run, with the objects that were given."""
    inputs = inputs_record.inputs(begun["inputs"]) if "inputs" in begun else None
    stored: Objects = begun.get("objects", {})
    if not stored:
        return reopen.open_experiment(folder.path, inputs)[1]
    assert inputs is not None, "both are recorded together"
    # what is not asked for
    there = {"federation", "assign", "upload", "aggregator", "sampler", "metric", "optimizer", "weights"}
    there |= {kind for kind, held in (("model", given.models), ("method", given.method)) if held}
    named = {stage.name: stage for stage in given.stages}
    missing = {name: line for name, line in stored.items() if name.removeprefix("stage ") not in named}
    python_components.need(folder.path, missing, there)
    opened = {"method", "stage", "model", "head"}
    held = {"method" if given.method else "", *({"model", "head"} if given.models else ())}
    reopen.check_code(folder, opened - held, {*python_components.kinds(stored), *(f"stage {name}" for name in named)})
    recipe = folder.recipe
    method = given.method or build.component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)
    stages = [
        named.get(name) or build.component(STAGES, name, recipe.stage_parameters.get(name, {}), recipe.folders)
        for name in recipe.stages
    ]
    models = [copy.deepcopy(model) for model in given.models] or build.architectures(recipe, inputs, method.head)
    if (folder.path / INITIAL).exists():
        for model, w in zip(models, folder.initial_weights([weights(model) for model in models]), strict=True):
            load_weights(model, w)
    local = build.local(recipe)
    return Experiment(recipe, method, bind(stages, method), (), {}, local, tuple(models))


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
    found = read_runs.load_runs([place for place in places if place.is_dir()]) if places else []
    if not found:
        raise BadInput(f"{', '.join(map(str, patterns))}: there is no run folder; give a pattern such as 'runs/*'")
    return Results(load(run.path, **given) for run in found)
