"""Round loop, shared by all transports.

The pieces:

- An *algorithm* (`fedhead.algorithm`) is a method or a stage. It defines local training, the reply and aggregation.
- A *transport* (`transport.py`) reaches the clients. The simulation (`simulation.py`) passes jobs to an executor on
  this machine; Flower (`fedhead.flower.server.transport`) sends messages to sites.
- An *exchange* (`exchange.py`) queries a cohort over the transport, checks the replies and aggregates them.
- The *loop*, here, is the same for all transports. Each round it draws a cohort from the available clients, runs the
  exchange, evaluates, and passes the record and a `Snapshot` to the observers. A run can be resumed from any snapshot.
  After the last round, each stage is one or two more exchanges with all clients, on copies of the states. Stages do
  not change the trained run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger, warn_once
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.server import evaluate_global_model, global_model
from fedhead.engine.experiment import compatibility
from fedhead.engine.experiment.callbacks import KEEP, STOP, CallbackList
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.evaluated_rounds import UntestedRow, is_evaluated
from fedhead.engine.rounds.exchange import exchange
from fedhead.engine.rounds.observer import FinishedRun, Kept, Observer, Snapshot
from fedhead.engine.rounds.transport import Context, Transport
from fedhead.metrics.records import Row, StageResult
from fedhead.metrics.registry import NO_METRICS, Metric, measure_clients


# -- the run ------------------------------------------------------------------------------------------
def run(transport: Transport, observers: Sequence[Observer] = (), resume: Snapshot | None = None) -> FinishedRun:
    """Train a federation, then run the stages.

    Args:
        transport: Transport to the clients; it holds the experiment and the server state.
        observers: Observers, called in order. The run ends after a round for which one returns `STOP`.
        resume: Snapshot to continue from.

    Returns:
        The finished run.

    Raises:
        BadInput: If a stage is incompatible with the method, the models or the transport.
        FedheadError: If a round does not reach its quorum; for a transport without a quorum, if any client fails.
    """
    experiment, schedule = transport.experiment, transport.experiment.schedule
    stages, rounds = experiment.stages, schedule.rounds
    compatibility.check_rounds(rounds, stages)
    for stage in stages:
        transport.check(stage)  # before any compute
        _warn_if_not_robust(transport, stage)
    _warn_without_local_epochs(transport)
    history: list[Row] = []
    number, kept, stopped, confusion = 0, None, None, None
    validated = transport.clients.federation.validation is not None
    memories = () if resume is None else resume.memories
    objective = transport.clients.task.objective.name
    callbacks = CallbackList(experiment.callbacks, experiment.metrics, validated, memories, objective)
    if resume is not None:
        transport.restore(resume.server, resume.clients, resume.round)
        history, number, kept, stopped = list(resume.history), resume.round, resume.kept, resume.stopped
        if stopped is not None:  # a function that stopped the run did so after the round was recorded
            history[-1] = {**history[-1], "stopped": stopped}
        transport.compiled_from = resume.compiled_from
        transport.best = {} if kept is None else kept.clients
    private = transport.clients.privacy
    transport.begin()
    for observer in observers:
        observer.start(transport.name, resume)
    while number < rounds and stopped is None:
        number += 1
        last = number == rounds or (private is not None and not private.affords(number + 1))
        evaluated = last or is_evaluated(number, rounds, schedule.evaluate_every, schedule.last_rounds)
        row = train_round(transport, number, evaluated=evaluated, deliver=last and not stages, final=last)
        confusion = row.pop("confusion", None)
        history.append(row)
        if transport.report().compiled and transport.compiled_from is None:
            transport.compiled_from = number
            logger.info("round %d: steps are compiled from here on", number)
        if private is not None and number < rounds and not private.affords(number + 1):
            row["stopped"] = "privacy"
            transport.log(f"round {number}: the privacy budget is spent, the run ends")
        visible = UntestedRow(row)
        keeps = KEEP in callbacks.after_round(visible)
        row |= visible
        if not evaluated and (keeps or "stopped" in row):  # its models may be the final ones
            clock, evaluated = _Clock(transport), True
            row |= evaluate(transport, transport.context(number), experiment.metrics)
            row["seconds"] += clock.seconds()
        if keeps:
            kept = Kept(number, transport.server, transport.states.kept.copy())
            transport.best = kept.clients
        stopped = row.get("stopped")
        # copies, so that later rounds don't change a stored snapshot
        state = (transport.states.kept.copy(), list(history), copy.deepcopy(callbacks.memories), kept, stopped)
        snapshot = Snapshot(number, transport.server, *state, transport.compiled_from)
        answers = [observer.round(row, snapshot) for observer in observers]
        if any(answer is STOP for answer in answers):
            stopped = row.setdefault("stopped", "on_round")
            for observer in observers:
                observer.stop(replace(snapshot, stopped=stopped))
            if not evaluated:
                logger.warning(
                    "stopped at round %d, which is not evaluated: its accuracy and losses are of an earlier round, or "
                    "none; stop after a multiple of %d rounds, or test the model by result.evaluate(x, y)",
                    number,
                    schedule.evaluate_every,
                )
    transport.end_rounds()
    for line in callbacks.without_value() if number else ():
        transport.log(line)
    earlier = kept is not None and kept.round != number
    if kept is not None and earlier:
        transport.states.clear()
        transport.restore(kept.server, kept.clients, kept.round)
        confusion = None
    if (earlier or stopped is not None) and transport.remote and not stages:  # sites could not know the final round
        transport.evaluate(transport.context(transport.round), deliver=True)
    result = FinishedRun(transport, history, transport.name, last_rounds=schedule.last_rounds)
    result.confusion = confusion or _confusion(transport)
    for stage in stages:
        result.stages[stage.name] = _run_stage(transport, stage, experiment.metrics)
        for observer in observers:
            observer.stage(result.stages[stage.name])
    result.compile_seconds, result.compiled_from = transport.report().compile_seconds, transport.compiled_from
    for observer in observers:
        observer.end(result)
    return result


def train_round(
    transport: Transport, number: int, *, evaluated: bool = False, deliver: bool = False, final: bool = False
) -> Row:
    """Train one round and return its record; without a quorum nothing changes.

    Raises:
        BadInput: If the privacy budget does not suffice for the round.
    """
    clock, private = _Clock(transport), transport.clients.privacy

    def select(present: list[int]) -> Cohort:
        sizes = transport.sizes(present)
        if private is not None:
            private.check(number, sizes)
        return transport.draw_cohort(number, sizes)

    row: Row = {"round": number, "lr": transport.clients.lr(number)}
    transport.server, record = exchange(transport, transport.context(number), select)
    transport.round = number
    row |= record
    if private is not None:
        row["privacy"] = asdict(private.guarantee(number))
    if evaluated:
        now = transport.context(number)
        row |= evaluate(transport, now, transport.experiment.metrics, deliver=deliver, final=final)
        if (validation := transport.validate(now)) is not None:
            row["validation"] = validation
    row["seconds"] = clock.seconds()
    return row


def _confusion(transport: Transport) -> list[list[int]] | None:
    """Return the confusion matrix of the global model; None without a global model or test set."""
    clients = transport.clients
    test = (transport.test, clients.bf16)
    row = evaluate_global_model(transport.experiment.method, transport.server, clients.task, *test, final=True)
    return row.get("confusion")


def run_stage(transport: Transport, stage: Stage, metrics: Mapping[str, Metric] = NO_METRICS) -> StageResult:
    """Run one stage on a trained federation, without changing its states.

    The stage uses the round number after the last trained round, even if more rounds were planned.

    Raises:
        BadInput: If the stage is incompatible with the run, or the run's privacy budget is spent.
    """
    if transport.experiment.privacy:
        raise BadInput(
            f"stage {stage.name}: the privacy budget of this run is spent; start a new run with this stage, whose "
            "budget adds to it"
        )
    return _run_stage(transport, stage, metrics)


def _run_stage(transport: Transport, stage: Stage, metrics: Mapping[str, Metric]) -> StageResult:
    clock, task, method = _Clock(transport), transport.clients.task, transport.experiment.method
    stage = stage.on_method(method)
    transport.check(stage)
    row, after = Row(bytes_up=0, bytes_down=0), Context(stage, transport.server, transport.states, transport.round)
    for number, step in enumerate(chain := stage.chain()):
        server = step.start_after_prerequisite(transport.server, after.server, task) if number else transport.server
        before, (after, row) = row, _stage_exchange(transport, step, server)
        for entry in ("bytes_up", "bytes_down"):
            row[entry] += before[entry]
        for entry in ("failed", "absent", "clipped", "left_out"):
            if entry in before:
                row[entry] = before[entry] | row.get(entry, {})
    stage = chain[-1]
    for name, ids in row.get("left_out", {}).items():
        transport.log(f"stage {stage.name}: {name} left out classes {ids}, with fewer samples than its min_class_count")
    if stage.release is not None:
        row["privacy"] = asdict(stage.release.guarantee(stage.name, task.noise_shares))
    row |= evaluate(transport, after, metrics, deliver=True, final=True)
    row["seconds"] = clock.seconds()
    return StageResult(stage.name, after.server, after.states, row, global_model(stage, after.server, task))


def _warn_if_not_robust(transport: Transport, stage: Stage) -> None:
    """Log a warning if a stage aggregates by its own rule instead of the run's aggregator."""
    rule = transport.experiment.aggregator
    if rule is not None and stage.aggregates:
        transport.log(f"stage {stage.name} aggregates by its own rule: the aggregator {rule.name} is for the rounds")


def _warn_without_local_epochs(transport: Transport) -> None:
    """Warn if the run sets local epochs or steps, but each phase of its method and stages has its own epochs."""
    method, task = transport.experiment.method, transport.clients.task
    steps = (step for stage in transport.experiment.stages for step in stage.on_method(method).chain())
    own = all(phase.epochs is not None for algorithm in (method, *steps) for phase in algorithm.phases(task))
    if own and (task.local.steps is not None or task.local.epochs != 1):
        warn_once(f"local_epochs and local_steps have no effect: each phase of {method.name} has its own epochs")


def _stage_exchange(transport: Transport, stage: Stage, server: Tree) -> tuple[Context, Row]:
    """Run an exchange with all available clients on a copy of their states; return the new context and the record."""
    context = Context(stage, server, transport.states.copy(), transport.round + 1)
    server, record = exchange(transport, context, Cohort)
    return replace(context, server=server), record


def evaluate(
    transport: Transport, context: Context, metrics: Mapping[str, Metric], deliver: bool = False, final: bool = False
) -> Row:
    """Evaluate the global model and all personal models; return the entries of a record.

    Args:
        transport: Transport to the clients.
        context: Method or stage, round and states to evaluate.
        metrics: Additional metrics by name.
        deliver: Whether these models are final, so that remote clients store theirs.
        final: Whether to record the confusion matrix.
    """
    task, test = transport.clients.task, (transport.test, transport.clients.bf16)
    row = evaluate_global_model(context.algorithm, context.server, task, *test, metrics, final)
    tests = transport.evaluate(context, deliver, metrics)
    row |= {"personal": None, "clients": None} if tests is None else evaluation.client_rows(tests) | tests.global_row
    columns = (None, None) if tests is None else (tests.accuracy, tests.loss)
    spread = measure_clients(metrics, *columns)
    for name, entries in (("metrics", spread.values), ("notes", spread.notes), ("notes", tests.notes if tests else {})):
        if entries:
            row[name] = row.get(name, {}) | entries
    return row


class _Clock:
    """Stopwatch that excludes the transport's compile time."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._begin, self._compiled = time.perf_counter(), transport.report().compile_seconds

    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return time.perf_counter() - self._begin - (self._transport.report().compile_seconds - self._compiled)
