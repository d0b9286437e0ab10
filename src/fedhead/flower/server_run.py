"""The server's whole run in its run folder: the files of a simulation, with a checkpoint per round."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.rounds import Snapshot
from fedhead.flower import factory
from fedhead.flower.config import ServerFile
from fedhead.flower.server.transport import FlowerTransport
from fedhead.metrics.records import Row
from fedhead.recipes.experiment import Experiment
from fedhead.runs import environment
from fedhead.runs.run_writer import RunWriter

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)


def serve(file: ServerFile, grid: Grid, resume: bool = False, log: Callable[[str], None] = print) -> Row:
    """Carry out the run of a server.yaml over a grid; with `resume` it goes on from its last checkpoint."""
    out = file.at(file.out)
    run = RunWriter(file.recipe_of_run(), out, resume=resume, allow_changed_code=file.allow_changed_code)
    if run.result is not None:
        log(f"{out} holds a finished run already")
        return run.result
    torch.set_num_threads(1)  # the server adds up; its clients compute
    as_now = {"executor": FlowerTransport.name, "sites": list(file.sites)}
    if any(run.environment.get(name, value) != value for name, value in as_now.items()):
        raise BadInput(
            f"{out} was begun with other sites or in simulation: select another 'out', or resume it as it was"
        )
    spec = factory.run_spec(file, run.environment.get("experiment"), run.recipe)
    experiment = factory.experiment_of(run.recipe, spec)
    data = factory.server_data(file, run.recipe)
    transport = factory.transport(file, spec, experiment, data, grid, log)
    if run.recipe.weights is not None:
        _check_first_weights(transport.clients)
    facts = environment.facts(torch.device("cpu")) | as_now | {"precision": "fp32", "experiment": spec.experiment}
    with _disk(out), run.writing(facts, data):
        return _run(run, transport, experiment)


def _check_first_weights(clients: Clients) -> None:
    """Refuse first weights for a method whose clients' states begin with them: only the server has the file."""
    method, task, w = clients.method, clients.task, clients.initial[0]
    one, other = (method.init_client(start, task).leaves() for start in (w, w + 1))
    if any(not torch.equal(t, other[name]) for name, t in one.items()):
        raise BadInput(
            f"weights: {method.name} keeps a model at its sites that begins with the first weights, and only the "
            "server has these: leave weights out"
        )


def _run(run: RunWriter, transport: FlowerTransport, experiment: Experiment) -> Row:
    def after_round(now: Snapshot) -> None:
        accepted = torch.tensor([now.clients.get(k, 0) for k in range(len(transport.spec.sites))])
        state = Tree(server=now.server, clients=Tree(), accepted=accepted)
        with _disk(run.out):
            run.after_round(now, lambda: state, checkpoint=True)  # sites keep states for one round back, no more
        transport.log(_line(now.history[-1]))

    resume = run.snapshot(lambda state: {k: int(r) for k, r in enumerate(state["accepted"])})
    if resume is not None:
        transport.log(f"going on after round {resume.round}")
    result = rounds.run(
        transport,
        stages=experiment.stages,
        evaluate_every=experiment.recipe.evaluate_every,
        last_rounds=experiment.recipe.last_rounds,
        metrics=experiment.metrics,
        callbacks=experiment.callbacks,
        resume=resume,
        on_round=after_round,
    )
    if not run.recipe.rounds:
        accepted = torch.zeros(len(transport.spec.sites), dtype=torch.int64)
        run.save_first(result, Tree(server=result.server, clients=Tree(), accepted=accepted))
    found = run.finish(result, transport.clients.federation.public)
    reached = {"accuracy": found["accuracy"], "personal": found["personal"]}
    reached |= {f"after {name}": stage.accuracy for name, stage in result.stages.items()}
    transport.log(", ".join(["finished", *_percents(reached)]))
    return found


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Name a disk that can't be written to, so that the operator knows what to fix before resuming."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in _DISK:
            raise
        raise FedheadError(
            f"the server can't write to {out} ({error}): make room there, or make it writable, then resume; the sites "
            "keep their states"
        ) from error


def _line(row: Row) -> str:
    parts = [f"round {row['round']}"]
    parts += _percents({name: row.get(name) for name in ("accuracy", "personal")})
    missing = [*row.get("failed", {}), *row.get("absent", {})]
    parts += [f"without {', '.join(missing)}"] if missing else []
    return ", ".join([*parts, f"{row['seconds']:.1f} s"])


def _percents(values: Mapping[str, float | None]) -> list[str]:
    return [f"{name} {value:.2f} %" for name, value in values.items() if value is not None]
