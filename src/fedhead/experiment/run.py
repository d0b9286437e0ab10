"""A recipe carried out in a run folder, from the start or from where it was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree
from fedhead.engine import classification_metrics
from fedhead.engine.metrics import Row, RunMetrics
from fedhead.engine.rounds import Snapshot
from fedhead.engine.simulation import Simulation, simulate
from fedhead.executors import select
from fedhead.executors.compile import start_compiler_workers
from fedhead.executors.job import Executor
from fedhead.executors.multi_run import run_together
from fedhead.executors.stack import Stack
from fedhead.experiment import build, components, environment, reopen
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run_folder import RunFolder
from fedhead.experiment.tensorboard import Board
from fedhead.models.split_model import SplitModel

LONG = 50  # local epochs of a client from which on a run on a GPU is likely to be compiled


@dataclass(frozen=True)
class Settings:
    """How a recipe is carried out; it decides rounding and speed, not what is learned."""

    data: str | Path | None = None
    device: str = "auto"
    executor: str | Executor = "auto"
    precision: str = "fp32"
    threads: int | None = None  # None: one for small models, torch's own choice for others
    tensorboard: bool = False
    allow_changed_code: bool = False  # resume also where code of the user's own differs from what the run began with


def execute(
    recipe: Recipe,
    out: str | Path,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Row:
    """Carry out a recipe in the folder `out` and return its final results.

    With `resume` a run that was stopped there goes on, and ends as if it had not been; a finished one is left as it
    is. `on_row` learns each round's metrics, also those from before a resumption.
    """
    out, settings = Path(out), settings or Settings()
    existing = RunFolder.open(out, recipe) if resume and out.exists() and any(out.iterdir()) else None
    if existing is not None and existing.finished:
        return existing.result() or {}
    own = settings.executor if isinstance(settings.executor, str) and settings.executor != "auto" else None
    if own is not None:
        select.EXECUTORS.find(own)
    if existing is None:
        RunFolder.refuse_taken(out)
    else:
        recipe = replace(recipe, folders=(*recipe.folders, *existing.recipe.folders))
        recorded = existing.environment().get("components", [])
        components.check_present(recipe, recorded, out)
        components.check_unchanged(out, recipe, recorded, own, settings.allow_changed_code)
    models = build.validate(recipe)
    device = select.device(settings.device)
    if device.type == "cuda" and recipe.rounds * recipe.local_epochs >= LONG:
        start_compiler_workers()  # while the data is read
    federation = build.federation(recipe, settings.data)
    for algorithm in (build.method(recipe), *build.stages(recipe)):
        algorithm.check(models, federation)  # before there is a folder
    folder = existing or RunFolder.create(out, recipe)
    torch.set_num_threads(settings.threads or _threads(models))
    with folder.locked():
        folder.save_partition(federation)
        facts = _settle(folder, settings, device)
        folder.save_environment({"components": components.sources(recipe, own)})
        snapshot = _snapshot(folder)
        board = Board(out, snapshot.history if snapshot else ()) if settings.tensorboard else None
        for row in snapshot.history if snapshot else ():
            on_row(row)

        def after_round(now: Snapshot) -> None:
            row = now.history[-1]
            folder.record(row)
            state = Tree(server=now.server, clients=Tree({str(k): state for k, state in now.clients.items()}))
            folder.save_checkpoint(now.round, state, final=now.round == recipe.rounds)
            if board is not None:
                board.add(row)
            on_row(row)

        try:
            result = simulate(
                federation,
                models,
                build.method(recipe),
                rounds=recipe.rounds,
                local=build.local(recipe),
                participation=recipe.participation,
                stages=build.stages(recipe),
                uploads=build.uploads(recipe),
                seed=recipe.seed,
                executor=settings.executor if isinstance(settings.executor, Executor) else facts["executor"],
                device=facts["device"],
                precision=facts["precision"],
                evaluate_every=recipe.evaluate_every,
                last_rounds=recipe.last_rounds,
                metrics=classification_metrics.find(recipe.metrics, recipe.folders),
                resume=snapshot,
                on_round=after_round,
                on_start=lambda name: folder.save_environment({"executor": name}),
            )
        finally:
            if board is not None:
                board.close()
        if result.stages:
            folder.save_stages({name: stage.server for name, stage in result.stages.items()})
        found = final_metrics(out, recipe, result)
        found["public_bytes"] = 0 if federation.public is None else federation.public.x.nbytes
        folder.finish(found)
    return found


def execute_together(
    recipes: Sequence[Recipe],
    outs: Sequence[Path],
    settings: Settings,
    *,
    resume: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Carry out several recipes side by side, their clients in one stack wherever they do the same work.

    Each ends as it would alone, in its own folder, from which it can be resumed, alone or together again.
    """
    refuse_apart(settings)

    def one(recipe: Recipe, out: Path) -> Callable[[Executor], Row]:
        return lambda member: execute(recipe, out, replace(settings, executor=member), resume=resume, on_row=on_row)

    return run_together(
        _stack_for(recipes, settings), [one(recipe, out) for recipe, out in zip(recipes, outs, strict=True)]
    )


def refuse_apart(settings: Settings) -> None:
    """Refuse settings by which runs can't train together."""
    if settings.executor not in ("auto", "stack"):
        raise BadInput(f"runs train together in a stack: leave out --executor {settings.executor}")


def stack_is_best(recipe: Recipe, settings: Settings) -> bool:
    """Whether a run with these settings would be carried out in a stack; `auto` is timed."""
    if settings.executor != "auto":
        return settings.executor == "stack"
    return select.executor("auto", _simulation(recipe, settings)).name == "stack"


def _stack_for(recipes: Sequence[Recipe], settings: Settings) -> Executor:
    """A stack for runs that train together, compiled on a GPU if all of them have many steps."""
    if select.device(settings.device).type != "cuda":
        return Stack()
    simulation = _simulation(recipes[0], settings)
    steps = len(recipes) * select.client_steps(simulation)
    return select.by_name("stack", simulation, compile=steps >= select.COMPILED_FROM)


def _simulation(recipe: Recipe, settings: Settings) -> Simulation:
    return reopen.begin(recipe, build.federation(recipe, settings.data), settings.device, settings.precision == "bf16")


def _name(executor: Any) -> Any:
    return executor.name if isinstance(executor, Executor) else executor


def _settle(folder: RunFolder, settings: Settings, device: torch.device) -> Row:
    """What the run is carried out with: as it was begun, if it was begun before."""
    begun = folder.environment()
    if "executor" not in begun:
        asked = {"executor": _name(settings.executor), "precision": settings.precision}
        folder.save_environment({**environment.facts(device), "precision": settings.precision})
        return {**asked, "device": device.type}
    for name in ("executor", "device", "precision"):
        asked_for = _name(getattr(settings, name))
        if asked_for not in ("auto", begun[name]) and not (name == "precision" and asked_for == "fp32"):
            raise BadInput(
                f"{folder.path} was begun with {name} {begun[name]}, and another one rounds differently: "
                f"leave --{name} out to resume, or start a new run"
            )
    if begun["device"] == "cuda":
        select.device("cuda")  # refuses where there is none
    torch.set_num_threads(begun["threads"])  # sums over more threads round differently
    return begun


def _threads(models: Sequence[SplitModel]) -> int:
    """One thread for small models without convolutions: their steps are too short to be shared, and waiting costs."""
    small = all(sum(p.numel() for p in model.parameters()) < 1_000_000 for model in models)
    convolves = any(isinstance(m, torch.nn.modules.conv._ConvNd) for model in models for m in model.modules())
    return 1 if small and not convolves else torch.get_num_threads()


def _snapshot(folder: RunFolder) -> Snapshot | None:
    found = folder.rewind()
    if found is None:
        return None
    number, state, history = found
    return Snapshot(number, state["server"], {int(k): kept for k, kept in state["clients"].items()}, history)


def final_metrics(out: Path, recipe: Recipe, result: RunMetrics) -> Row:
    """Return the final metrics of a run, as its folder keeps them."""
    last = next((row for row in reversed(result.history) if "accuracy" in row), {})
    return {
        "run": str(out),
        "dataset": recipe.dataset,
        "partition": recipe.partition,
        "method": recipe.method,
        "model": recipe.model,
        "seed": recipe.seed,
        "rounds": recipe.rounds,
        "accuracy": result.accuracy,
        "accuracy_mean": result.accuracy_mean,
        "metrics": result.metrics,
        "personal": result.personal,
        "per_class": last.get("per_class"),
        "clients": last.get("clients"),
        "stages": {name: stage.metrics for name, stage in result.stages.items()},
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "client_bytes": result.client_bytes,
        "seconds": result.seconds,
        "preparing": result.preparing,
        "executor": result.executor,
    }
