"""Run a recipe in a run folder, from the start or from where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.training import per_client_counts
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.callbacks import STOP
from fedhead.engine.rounds.rounds import FinishedRun, Snapshot
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.stack_errors import CannotStack
from fedhead.executors.compiling.process import start_ahead
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.models.precision import check_precision
from fedhead.models.split_model import SplitModel
from fedhead.recipes.experiment import Experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs import environment
from fedhead.runs.run_writer import RunWriter, stored_clients

LONG = 50  # local epochs of a client from which on a run on a GPU is likely to be compiled


@dataclass(frozen=True)
class Compute:
    """How a recipe is run; it decides rounding and speed, not what is learned."""

    data: str | Path | None = None
    device: str = "auto"
    executor: str | Executor = "auto"
    precision: str = "fp32"
    threads: int | None = None  # None: one for small models, torch's own choice for others
    loggers: tuple[Logger, ...] = ()  # besides those of the recipe
    allow_changed_code: bool = False  # resume also where the user's own code differs from what the run began with
    compile: str = "auto"  # when steps are compiled on a GPU, as in `select.COMPILE`


def execute(
    recipe: Recipe,
    out: str | Path,
    settings: Compute | None = None,
    *,
    resume: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Row:
    """Carry out a recipe in the folder `out` and return its final results.

    With `resume` a run that was stopped there goes on, and ends as if it had not been; a finished one is left as it
    is. `on_row` learns each round's metrics, also those from before a resumption.
    """
    settings = settings or Compute()
    asked = settings.executor if isinstance(settings.executor, str) and settings.executor != "auto" else None
    if asked is not None:
        select.EXECUTORS.find(asked, recipe.folders)
    run = RunWriter(
        recipe,
        out,
        resume=resume,
        executor=None if asked in select.BUILT_IN else asked,
        allow_changed_code=settings.allow_changed_code,
        loggers=settings.loggers,
    )
    if run.result is None:
        experiment = Experiment.from_recipe(run.recipe)
        epochs = recipe.rounds * per_client_counts.mean(experiment.local.epochs)
        if select.device(settings.device).type == "cuda" and epochs >= LONG:
            start_ahead(settings.compile)  # while the data is read
        carry_out(run, experiment, experiment.federation(settings.data), settings, on_row=on_row)
    assert run.result is not None, "set when the run ends"
    return run.result


def carry_out(
    run: RunWriter,
    experiment: Experiment,
    federation: Federation,
    settings: Compute,
    *,
    assign: Sequence[int] | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
    on_round: Callable[[Snapshot], Any] = lambda now: None,
) -> FinishedRun:
    """Simulate an experiment in its run folder, from the start or from where it was stopped.

    Args:
        run: The run folder, open for this recipe.
        experiment: What is run.
        federation: The clients' data.
        settings: How and where to compute.
        assign: The number of each client's architecture.
        on_row: Called with the record of every round, also of those before a resumption.
        on_round: Called with a snapshot after each round that is trained here; it may return `STOP`.

    Returns:
        The finished run; `run.result` has its final metrics.
    """
    device = select.device(settings.device)
    chosen = _as_begun(run, settings, device)
    torch.set_num_threads(chosen.threads or threads_for(experiment.models))  # sums over more threads round differently
    facts: dict[str, Any] = {}
    if "executor" not in run.environment:
        facts = {**environment.facts(device), "precision": chosen.precision, "compile": chosen.compile}
    with run.writing(facts, federation):
        run.folder.checkpoint.in_background = device.type == "cuda"  # a CPU has no time to spare
        if run.objects is not None:
            experiment = run.with_initial_weights(experiment)
        snapshot = run.snapshot(lambda state: {int(k): kept for k, kept in state["clients"].items()})
        if snapshot is not None:  # a run that was stopped goes on as it would have, also if it has to repeat rounds
            snapshot = replace(snapshot, compiled_from=run.environment.get("compiled_from"))
        for row in snapshot.history if snapshot else ():
            on_row(row)

        def begin(name: str) -> None:
            compiled_from = None if snapshot is None else snapshot.compiled_from
            run.folder.save_environment({"executor": name, "compiled_from": compiled_from})

        def after_round(now: Snapshot) -> Any:
            if now.compiled_from == now.round:  # before there is a checkpoint of it
                run.folder.save_environment({"compiled_from": now.round})

            def state() -> Tree:
                return Tree(server=now.server, clients=stored_clients(now.clients))

            run.after_round(now, state)
            on_row(now.history[-1])
            asked = on_round(now)
            if asked is STOP:
                run.save(now, state, final=True, stopped="on_round")
            return asked

        try:
            result = experiment.simulate(
                federation,
                executor=chosen.executor,
                device=chosen.device,
                precision=chosen.precision,
                compile=chosen.compile,
                assign=assign,
                resume=snapshot,
                on_round=after_round,
                on_start=begin,
            )
        except CannotStack:  # the error names another executor, which the run must then be free to take
            run.folder.forget_executor()
            raise
        if not run.recipe.rounds:
            run.save_first(result, Tree(server=result.server, clients=Tree()))
        run.finish(result, federation.public)
    return result


def check_settings(settings: Compute, folders: Sequence[Path]) -> None:
    """Refuse, before any of several runs, settings that none of them could be run with.

    Args:
        settings: How and where to compute; the device is checked by whoever knows the machine.
        folders: Where the file of an executor of the user's own is looked for.

    Raises:
        BadInput: There is no such executor, precision or `compile`.
    """
    check_precision(settings.precision)
    select.check_compile(settings.compile)
    if isinstance(settings.executor, str) and settings.executor != "auto":
        select.EXECUTORS.find(settings.executor, folders)


def check_executor(settings: Compute, device: torch.device) -> None:
    """Refuse, before any run, an executor that can't run on the device where it will train."""
    if isinstance(settings.executor, str):
        select.check_device(settings.executor, device)


def _as_begun(run: RunWriter, settings: Compute, device: torch.device) -> Compute:
    """Return the settings of the run: those it was begun with, if it was begun before."""
    begun = run.environment
    if "executor" not in begun:
        check_executor(settings, device)  # before anything is written
        return replace(settings, device=str(device), executor=_executor(settings.executor, run.recipe))
    for name in ("executor", "device", "precision", "compile"):
        value, begun_with = getattr(settings, name), begun.get(name, "auto")
        asked = value.name if isinstance(value, Executor) else value
        if name == "device":
            asked = asked.partition(":")[0]  # whichever GPU
        if asked not in ("auto", begun_with) and not (name == "precision" and asked == "fp32"):
            raise BadInput(
                f"{run.out} was begun with {name} {begun_with}, and another one rounds differently: "
                f"leave --{name} out to resume, or start a new run"
            )
    if begun["device"] == "cuda" and device.type != "cuda":
        device = select.device("cuda")  # refuses where there is none
    executor = settings.executor if isinstance(settings.executor, Executor) else begun["executor"]
    return replace(
        settings,
        executor=_executor(executor, run.recipe),
        device=str(device) if device.type == begun["device"] else begun["device"],
        precision=begun["precision"],
        threads=begun["threads"],
        compile=begun.get("compile", "auto"),
    )


def _executor(asked: str | Executor, recipe: Recipe) -> str | Executor:
    """Return the user's own executor, made once; built-in ones are made when there is work to choose them for."""
    if isinstance(asked, Executor) or asked == "auto" or asked in select.BUILT_IN:
        return asked
    return select.own(asked, recipe.folders)


def threads_for(models: Sequence[SplitModel]) -> int:
    """One thread for small models without convolutions: their steps are too short to be shared, and waiting costs."""
    small = all(sum(p.numel() for p in model.parameters()) < 1_000_000 for model in models)
    convolves = any(isinstance(m, torch.nn.modules.conv._ConvNd) for model in models for m in model.modules())
    return 1 if small and not convolves else torch.get_num_threads()
