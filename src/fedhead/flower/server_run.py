"""Server's run in its run folder: the files of a simulation, with a checkpoint per round."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.tree import Tree
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.engine.clients.clients import Clients
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun, Observer, Snapshot
from fedhead.engine.rounds.transport import Context
from fedhead.flower import factory
from fedhead.flower.config import ServerFile
from fedhead.flower.ledger import LEDGER, Ledger
from fedhead.flower.server import cross_site, table_fit
from fedhead.flower.server.node_keys import site_keys
from fedhead.flower.server.table_fit import TableFit
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.wire.protocol import RunSpec
from fedhead.metrics.records import Row, final_rows, tested_of
from fedhead.recipes import inputs_record
from fedhead.runs import environment, reopen
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CROSS_SITE
from fedhead.runs.run_loggers import final_metrics
from fedhead.runs.run_writer import RunWriter

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)


def serve(file: ServerFile, grid: Grid, resume: bool = False, log: Callable[[str], None] = print) -> Row:
    """Run a server.yaml over a grid, from the start or, with `resume`, from the last checkpoint."""
    out = file.at(file.out)
    run = ServerWriter(file, resume)
    if run.result is not None:
        log(f"{out} holds a finished run already")
        return run.result
    torch.set_num_threads(1)  # the server only aggregates
    as_now: dict[str, Any] = {"executor": FlowerTransport.name, "sites": list(file.sites)}
    as_now["leave_out_site"] = file.leave_out_site
    if file.schema is not None:
        as_now["table_schema"] = TableSchema.read(file.at(file.schema)).to_json()
    if any(run.environment.get(name, value) != value for name, value in as_now.items()):
        raise BadInput(
            f"{out} was begun with other sites, with another schema or in simulation: select another 'out', or resume "
            "it as it was"
        )
    asked: list[Mapping[str, Any]] = []  # for the ledger, which is in the run folder

    def fitted(spec: RunSpec) -> Mapping[str, Any]:
        if "inputs" in run.environment:
            return table_fit.entries(run.environment["inputs"], spec.table)
        keys = {} if file.keys is None else site_keys(file.at(file.keys), file.sites)
        return TableFit(grid, spec, file, log, keys, lambda *lines: asked.extend(lines)).entries()

    spec = factory.run_spec(file, run.environment.get("experiment"), run.recipe, fitted)
    data = factory.server_data(file, run.recipe)
    transport = factory.transport(file, spec, run.recipe, data, grid, log)
    if run.recipe.weights is not None:
        _check_first_weights(transport.clients)
    inputs = inputs_record.describe(transport.clients.federation)
    facts = environment.facts(torch.device("cpu")) | as_now
    facts |= {"precision": "fp32", "experiment": spec.experiment, "inputs": inputs}
    with _disk(out), run.writing(facts, data):
        if asked:
            Ledger(out / LEDGER).append(*asked)
        snapshot = run.snapshot()
        if snapshot is not None:
            log(f"going on after round {snapshot.round}")
        training = len(file.sites) - (file.leave_out_site is not None)
        finished = rounds.run(transport, [run.loggers, run, ServerLog(log, training)], snapshot)
    return final_metrics(str(out), run.recipe, finished)


def finished_run(file: ServerFile) -> RunFolder:
    """Open the run folder of a server.yaml; raise `BadInput` if its run is not finished."""
    folder = RunFolder.open(file.at(file.out))
    if not folder.finished:
        raise BadInput(f"{folder.path} is not finished: resume the run first")
    return folder


def evaluate(file: ServerFile, grid: Grid, log: Callable[[str], None] = print) -> None:
    """Write the cross-site matrix of a finished run into its folder: of its last stage, else of its rounds.

    Raises:
        BadInput: If the run is not finished.
    """
    folder = finished_run(file)
    result, begun = folder.result() or {}, folder.environment()
    torch.set_num_threads(1)
    recipe = replace(folder.recipe, folders=(*folder.recipe.folders, file.path.parent))
    spec = factory.run_spec(file, begun["experiment"], recipe, lambda s: table_fit.entries(begun["inputs"], s.table))
    transport = factory.transport(file, spec, recipe, factory.server_data(file, recipe), grid, log)
    number, state = reopen.checkpoint_state(folder)
    transport.restore(state["server"], accepted_rounds(state), number)
    with _disk(folder.path), folder.locked():
        transport.begin()
        context = transport.context(number)
        for stage in transport.experiment.stages[-1:]:
            row = result["stages"][stage.name]
            without = {**row.get("failed", {}), **row.get("absent", {})}
            replied = [k for k, name in enumerate(spec.sites) if name not in without]
            context.states.keep(replied, [stage.name] * len(replied))
            server = folder.stage_states()[stage.name]
            context = Context(stage.on_method(transport.experiment.method), server, context.states, number + 1)
        cells, missing = cross_site.matrix(transport, context)
        for place, why in missing.items():
            log(f"{place}: {why}")
        cross_site.write(folder.path, spec.sites, cells, missing)
    log(f"wrote {folder.path / CROSS_SITE}")


def accepted_rounds(state: Tree) -> dict[int, Any]:
    """Return the version of each site's valid state in a checkpoint."""
    return {k: int(r) for k, r in enumerate(state["accepted"]) if r}


def _check_first_weights(clients: Clients) -> None:
    """Check that no client state depends on the initial weights, whose file only the server has."""
    method, task, w = clients.method, clients.task, clients.initial[0]
    first, second = (method.init_client(start, task).leaves() for start in (w, w + 1))
    if any(not torch.equal(t, second[name]) for name, t in first.items()):
        raise BadInput(
            f"weights: {method.name} keeps a model at its sites that begins with the first weights, and only the "
            "server has these: leave weights out"
        )


class ServerWriter(RunWriter):
    """Run folder of a server; the sites store the client states, of the last accepted round only.

    Args:
        file: Config of the server.
        resume: Resume an interrupted run, if the folder holds one.
    """

    always = True

    def __init__(self, file: ServerFile, resume: bool):
        compute = Compute(allow_changed_code=file.allow_changed_code)
        # The recipe can't describe the data of the sites, as it can't describe that of `fedhead.run`.
        objects = None if file.own_data is None else {"federation": f"{file.own_data} at {len(file.sites)} sites"}
        super().__init__(file.recipe_of_run(), file.at(file.out), resume=resume, compute=compute, objects=objects)
        self._sites = len(file.sites)

    def state(self, server: Tree, clients: Mapping[int, Any]) -> Tree:
        """Return the server state and the version of each site's valid state."""
        accepted = torch.tensor([clients.get(k, 0) for k in range(self._sites)])
        return Tree(server=server, clients=Tree(), accepted=accepted)

    def clients(self, state: Tree) -> dict[int, Any]:
        """Return the version of each site's valid state."""
        return accepted_rounds(state)

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Do nothing: the environment is already recorded."""


class ServerLog(Observer):
    """Log of a run for the operator.

    Args:
        log: Called with each line.
        sites: Number of sites that train.
    """

    def __init__(self, log: Callable[[str], None], sites: int):
        self._log, self._sites = log, sites

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Log a round."""
        missing = [*row.get("failed", {}), *row.get("absent", {})]
        without = [f"without {', '.join(missing)}"] if missing else []
        self._log(", ".join([f"round {row['round']}", *self._percents(row), *without, f"{row['seconds']:.1f} s"]))

    def end(self, result: FinishedRun) -> None:
        """Log the final accuracies, after the rounds and after each stage."""
        personal = next((row for row in reversed(final_rows(result.rows)) if row.get("personal") is not None), {})
        line = ", ".join(["finished", *self._percents(personal | {"accuracy": result.accuracy})])
        for name, row in result.stage_rows.items():
            line += f"; after {name}: {', '.join(self._percents(row)) or 'not tested'}"
        self._log(line)

    def _percents(self, row: Row) -> list[str]:
        """Return the accuracies of a record, with the number of sites behind the mean if some are missing."""
        values = {name: row.get(name) for name in ("accuracy", "personal")}
        texts = [f"{name} {value:.2f} %" for name, value in values.items() if value is not None]
        if values["personal"] is not None and (tested := tested_of(row, self._sites)):
            texts[-1] += f" ({tested} sites)"
        return texts


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Convert disk errors to one that tells the operator what to fix before resuming."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in _DISK:
            raise
        raise FedheadError(
            f"the server can't write to {out} ({error}): make room there, or make it writable, then resume; the sites "
            "keep their states"
        ) from error
