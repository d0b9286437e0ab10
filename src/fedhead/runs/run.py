"""Running of recipes in run folders, from the start or from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger
from fedhead.core.training import per_client_counts
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun, Observer
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.stack_errors import CannotStack
from fedhead.executors.compiling.process import start_ahead
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.models.precision import check_precision
from fedhead.models.split_model import SplitModel
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import Recipe
from fedhead.runs import environment
from fedhead.runs.run_writer import RunWriter

LONG = 50  # local epochs of a client above which a GPU run is usually compiled


def execute(
    recipe: Recipe,
    out: str | Path,
    compute: Compute | None = None,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    loggers: Sequence[Logger] = (),
) -> Row:
    """Run a recipe in the folder `out`.

    Args:
        recipe: Recipe to run.
        out: Run folder.
        compute: Device, executor and precision.
        resume: Resume an interrupted run, with the same results as an uninterrupted one. A finished run is not changed.
        observers: Observers of the rounds.
        loggers: Loggers in addition to those of the recipe.

    Returns:
        The final results.
    """
    compute = compute or Compute()
    run = RunWriter(recipe, out, resume=resume, compute=compute, loggers=loggers)
    if run.result is not None:
        logger.warning("%s was finished already, nothing was trained", run.out)
    else:
        epochs = per_client_counts.mean(per_client_counts.read(recipe.local_epochs, "local_epochs"))
        if select.device(compute.device).type == "cuda" and recipe.rounds * epochs >= LONG:
            start_ahead(compute.compile)  # in parallel with reading the data
        run_in_folder(run, *prepare(run.recipe, compute.data_dir), compute, observers)
    assert run.result is not None, "set when the run ends"
    return run.result


def run_in_folder(
    run: RunWriter,
    experiment: Experiment,
    federation: Federation,
    compute: Compute,
    observers: Sequence[Observer] = (),
) -> FinishedRun:
    """Simulate an experiment in its run folder, from the start or from its checkpoint.

    Args:
        run: Writer of the run folder.
        experiment: Experiment to run.
        federation: Data of the clients.
        compute: Device, executor and precision.
        observers: Observers of the rounds, called after a round was recorded.

    Returns:
        The finished run; `run.result` has its final metrics.
    """
    device = select.device(compute.device)
    chosen = _as_begun(run, compute, device)
    torch.set_num_threads(chosen.threads or threads_for(experiment.models))  # the number affects rounding
    experiment = run.with_initial_weights(experiment)
    simulation = Simulation(experiment, federation, chosen)  # raises errors before any file is written
    facts: dict[str, Any] = {}
    if "executor" not in run.environment:
        facts = {**environment.facts(device), "precision": chosen.precision, "compile": chosen.compile}
        facts["runs_at_once"] = simulation.report().runs
    with run.writing(facts, federation):
        run.folder.checkpoint.in_background = device.type == "cuda"  # a thread would slow down a CPU
        run.save_initial_weights(experiment)
        try:
            return rounds.run(simulation, [run.loggers, run, *observers], run.snapshot())
        except CannotStack:  # the error suggests another executor, which must then be allowed
            run.folder.forget_executor()
            raise


def check_compute(compute: Compute, folders: Sequence[Path], device: torch.device) -> None:
    """Check the compute options before any run.

    Args:
        compute: Compute options.
        folders: Search path of the user's executors.
        device: Device of the runs.

    Raises:
        BadInput: There is no such executor, precision or `compile`, or the executor can't run on the device.
    """
    check_precision(compute.precision)
    select.check_compile(compute.compile)
    if isinstance(compute.executor, str) and compute.executor != "auto":
        select.EXECUTORS.find(compute.executor, folders)
        select.check_device(compute.executor, device)


def _as_begun(run: RunWriter, compute: Compute, device: torch.device) -> Compute:
    """Return the compute options of a new run, or those that a resumed run was started with."""
    begun = run.environment
    if "executor" not in begun:
        check_compute(compute, run.recipe.folders, device)  # before any file is written
        return replace(compute, device=str(device), executor=_executor(compute.executor, run.recipe))
    for name in ("executor", "device", "precision", "compile"):
        value, begun_with = getattr(compute, name), begun.get(name, "auto")
        requested = value.name if isinstance(value, Executor) else value
        if name == "device":
            requested = requested.partition(":")[0]  # any GPU
        if requested not in ("auto", begun_with) and not (name == "precision" and requested == "fp32"):
            raise BadInput(
                f"{run.out} was begun with {name} {begun_with}, and another one rounds differently: "
                f"leave --{name} (and --engine shared) out to resume, or start a new run"
            )
    if begun["device"] == "cuda" and device.type != "cuda":
        device = select.device("cuda")  # raises an error without a GPU
    executor = compute.executor if isinstance(compute.executor, Executor) else begun["executor"]
    return replace(
        compute,
        executor=_executor(executor, run.recipe),
        device=str(device) if device.type == begun["device"] else begun["device"],
        precision=begun["precision"],
        threads=begun["threads"],
        compile=begun.get("compile", "auto"),
    )


def _executor(executor: str | Executor, recipe: Recipe) -> str | Executor:
    """Create the user's executor once; names of built-in ones are returned, to be created when a job is known."""
    if isinstance(executor, Executor) or executor == "auto" or executor in select.BUILT_IN:
        return executor
    return select.own(executor, recipe.folders)


def threads_for(models: Sequence[SplitModel]) -> int:
    """Return the number of threads: one for small models without convolutions, whose steps are short."""
    small = all(sum(p.numel() for p in model.parameters()) < 1_000_000 for model in models)
    convolves = any(isinstance(m, torch.nn.modules.conv._ConvNd) for model in models for m in model.modules())
    return 1 if small and not convolves else torch.get_num_threads()
