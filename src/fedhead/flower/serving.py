"""The server's whole run in its run folder: the same files as a simulation leaves, a checkpoint a round, resumption."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.tree import Tree
from fedhead.core.treefile import save_tree
from fedhead.engine.metrics import Row, RunMetrics
from fedhead.experiment import build, environment
from fedhead.experiment.run import STAGES, figures
from fedhead.experiment.run_folder import RunFolder
from fedhead.flower import assemble
from fedhead.flower.coordinator import Coordinator, Progress
from fedhead.flower.files import RECIPE_DATA, ServerFile
from fedhead.flower.protocol import RunSpec

if TYPE_CHECKING:
    from flwr.serverapp import Grid

EXECUTOR = "flower"  # what stands for the executor in the run folder
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)


@dataclass
class Served(RunMetrics):
    """A run over real sites, for the final figures."""

    history: list[Row]
    by_stage: dict[str, Row]
    last_rounds: int
    executor: str = EXECUTOR

    @property
    def measured(self) -> dict[str, Row]:
        """The figures of each stage."""
        return self.by_stage


def serve(file: ServerFile, grid: Grid, resume: bool = False, say: Callable[[str], None] = print) -> Row:
    """Carry out the run of a server.yaml over a grid; with `resume` it goes on from its last checkpoint."""
    recipe, out = file.recipe_of_run(), file.at(file.out)
    existing = RunFolder.open(out, recipe) if resume and out.exists() and any(out.iterdir()) else None
    if existing is not None and existing.finished:
        say(f"{out} holds a finished run already")
        return existing.result() or {}
    if existing is None:
        RunFolder.refuse_taken(out)
    torch.set_num_threads(1)  # the server adds up; its clients compute
    begun = existing.environment() if existing is not None else {}
    if begun.get("executor", EXECUTOR) != EXECUTOR or begun.get("sites", list(file.sites)) != list(file.sites):
        raise BadInput(
            f"{out} was begun with other sites or in simulation: select another 'out', or resume it as it was"
        )
    agreed = assemble.terms(file, begun.get("experiment"))
    folder = existing or RunFolder.create(out, recipe)
    with folder.locked(), _disk(out):
        facts = environment.facts(torch.device("cpu")) | {
            "executor": EXECUTOR,
            "precision": "fp32",
            "sites": list(file.sites),
            "experiment": agreed.experiment,
        }
        folder.save_environment(facts)
        coordinator = assemble.coordinator(file, agreed, grid, say)
        if file.test == RECIPE_DATA:
            folder.save_partition(build.federation(recipe, file.data))
        _rewind(folder, coordinator, say)
        return _run(folder, coordinator, agreed, out, say)


def _run(folder: RunFolder, coordinator: Coordinator, agreed: RunSpec, out: Path, say: Callable[[str], None]) -> Row:
    recipe = agreed.recipe_of_run()

    def after_round(now: Progress) -> None:
        row = now.history[-1]
        with _disk(out):
            folder.record(row)
            state = Tree(server=now.server, clients=Tree(), accepted=torch.tensor(now.accepted))
            folder.save_checkpoint(now.round, state, final=True)  # sites keep states for one round back, no more
        say(_line(row))

    outcomes = coordinator.run(build.method(recipe), build.stages(recipe), recipe.evaluate_every, after_round)
    if outcomes:
        save_tree(out / STAGES, Tree({name: outcome.server for name, outcome in outcomes.items()}))
    served = Served(coordinator.progress.history, {name: o.metrics for name, o in outcomes.items()}, recipe.last_rounds)
    found = figures(out, recipe, served)
    public = coordinator.clients.federation.public
    found["public_bytes"] = 0 if public is None else public.x.nbytes
    folder.finish(found)
    say(f"finished: accuracy {found['accuracy']}, personal {found['personal']}, stages {found['stages']}")
    return found


def _rewind(folder: RunFolder, coordinator: Coordinator, say: Callable[[str], None]) -> None:
    found = folder.rewind()
    if found is None:
        return
    number, state, history = found
    coordinator.progress = Progress(number, state["server"], [int(r) for r in state["accepted"]], history)
    say(f"going on after round {number}")


class _disk:
    """Names a disk that can't be written to, so that the operator knows what to fix before resuming."""

    def __init__(self, out: Path):
        self.out = out

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        on_disk = isinstance(error, OSError) and error.errno in _DISK
        if on_disk or isinstance(error, SafetensorError):
            raise FedheadError(
                f"the server can't write to {self.out} ({error}): make room there, or make it writable, then resume; "
                "the sites keep their states"
            ) from error


def _line(row: Row) -> str:
    parts = [f"round {row['round']}"]
    parts += [f"{name} {row[name]:.2f} %" for name in ("accuracy", "personal") if row.get(name) is not None]
    parts += [f"without {', '.join(row['failed'])}"] if row.get("failed") else []
    return ", ".join([*parts, f"{row['seconds']:.1f} s"])
