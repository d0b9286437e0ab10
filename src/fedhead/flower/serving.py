"""The server's whole run in its run folder: the same files as a simulation leaves, a checkpoint a round, resumption."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.tree import Tree
from fedhead.engine import classification_metrics, rounds
from fedhead.engine.metrics import Row
from fedhead.engine.rounds import Snapshot
from fedhead.experiment import build, components, environment
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run import final_metrics
from fedhead.experiment.run_folder import RunFolder
from fedhead.flower import assemble
from fedhead.flower.files import RECIPE_DATA, ServerFile
from fedhead.flower.transport import FlowerTransport

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)


def serve(file: ServerFile, grid: Grid, resume: bool = False, log: Callable[[str], None] = print) -> Row:
    """Carry out the run of a server.yaml over a grid; with `resume` it goes on from its last checkpoint."""
    recipe, out = file.recipe_of_run(), file.at(file.out)
    existing = RunFolder.open(out, recipe) if resume and out.exists() and any(out.iterdir()) else None
    if existing is not None and existing.finished:
        log(f"{out} holds a finished run already")
        return existing.result() or {}
    if existing is None:
        RunFolder.refuse_taken(out)
    torch.set_num_threads(1)  # the server adds up; its clients compute
    begun = existing.environment() if existing is not None else {}
    as_now = {"executor": FlowerTransport.name, "sites": list(file.sites)}
    if any(begun.get(name, value) != value for name, value in as_now.items()):
        raise BadInput(
            f"{out} was begun with other sites or in simulation: select another 'out', or resume it as it was"
        )
    if existing is not None:
        recorded = begun.get("components", [])
        components.check_present(recipe, recorded, out)
        components.check_unchanged(out, recipe, recorded, None, file.allow_changed_code)
    spec = assemble.run_spec(file, begun.get("experiment"))
    folder = existing or RunFolder.create(out, recipe)
    with folder.locked(), _disk(out):
        facts = environment.facts(torch.device("cpu")) | {
            **as_now,
            "precision": "fp32",
            "experiment": spec.experiment,
            "components": components.sources(recipe),
        }
        folder.save_environment(facts)
        transport = assemble.transport(file, spec, grid, log)
        if file.test == RECIPE_DATA:
            folder.save_partition(build.federation(recipe, file.data))
        return _run(folder, transport, recipe, out)


def _run(folder: RunFolder, transport: FlowerTransport, recipe: Recipe, out: Path) -> Row:
    def after_round(now: Snapshot) -> None:
        row = now.history[-1]
        with _disk(out):
            folder.record(row)
            accepted = torch.tensor([now.clients.get(k, 0) for k in range(len(transport.spec.sites))])
            state = Tree(server=now.server, clients=Tree(), accepted=accepted)
            folder.save_checkpoint(now.round, state, final=True)  # sites keep states for one round back, no more
        transport.log(_line(row))

    resume = _snapshot(folder)
    if resume is not None:
        transport.log(f"going on after round {resume.round}")
    result = rounds.run(
        transport,
        stages=build.stages(recipe),
        evaluate_every=recipe.evaluate_every,
        last_rounds=recipe.last_rounds,
        metrics=classification_metrics.find(recipe.metrics, recipe.folders),
        resume=resume,
        on_round=after_round,
    )
    if result.stages:
        folder.save_stages({name: stage.server for name, stage in result.stages.items()})
    found = final_metrics(out, recipe, result)
    public = transport.clients.federation.public
    found["public_bytes"] = 0 if public is None else public.x.nbytes
    folder.finish(found)
    after = "".join(f", after {name} {stage.accuracy}" for name, stage in result.stages.items())
    transport.log(f"finished: accuracy {found['accuracy']}, personal {found['personal']}{after}")
    return found


def _snapshot(folder: RunFolder) -> Snapshot | None:
    found = folder.rewind()
    if found is None:
        return None
    number, state, history = found
    return Snapshot(number, state["server"], {k: int(r) for k, r in enumerate(state["accepted"])}, history)


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
