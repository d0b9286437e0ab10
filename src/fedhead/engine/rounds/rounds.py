"""The round loop: the only place that knows what a round is, for every transport.

The pieces:

- An *algorithm* (`fedhead.algorithm`) is a method or a stage: what a client does, what it sends, and what the server
  makes of the replies.
- A *transport* (`transport.py`) reaches the clients. The simulation's (`simulation.py`) gives their work to an executor
  on this machine; Flower's (`fedhead.flower.server.transport`) sends messages to sites.
- An *exchange* (`exchange.py`) asks a cohort over the transport, checks the replies and aggregates them.
- The *loop*, here, is the same for both transports. In every round it draws a cohort among the clients that are
  present, makes the exchange, evaluates, and hands out the round's record with a `Snapshot` from which the run can be
  resumed. After the last round each stage is one more exchange (or two) with all clients, on copies of the states: the
  trained run stays as it is.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedhead.algorithm.stage import Stage
from fedhead.core.system.log import logger
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.server import evaluate_global_model, global_model
from fedhead.engine.experiment import compatibility
from fedhead.engine.experiment.callbacks import KEEP, STOP, CallbackList
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.evaluated_rounds import is_evaluated
from fedhead.engine.rounds.exchange import exchange
from fedhead.engine.rounds.observer import FinishedRun, Kept, Observer, Snapshot
from fedhead.engine.rounds.transport import Context, Transport
from fedhead.metrics.records import Row, StageResult
from fedhead.metrics.registry import NO_METRICS, Metric, measure_clients


# -- the run ------------------------------------------------------------------------------------------
def run(transport: Transport, observers: Sequence[Observer] = (), resume: Snapshot | None = None) -> FinishedRun:
    """Train a federation, then run the stages.

    Args:
        transport: The way to the clients, with the experiment; it also holds the state of the server.
        observers: Are told of every round, in order; the run ends after a round for which one returns `STOP`.
        resume: The snapshot to continue from.

    Returns:
        The finished run.

    Raises:
        BadInput: If a stage does not go with the method, the models or the transport.
        FedheadError: If a round has no quorum, or, without one, as soon as a client fails.
    """
    experiment, schedule = transport.experiment, transport.experiment.schedule
    stages, rounds = experiment.stages, schedule.rounds
    compatibility.check_rounds(rounds, stages)
    for stage in stages:
        transport.check(stage)  # before any compute
        _say_what_is_not_robust(transport, stage)
    history: list[Row] = []
    number, kept, stopped, confusion = 0, None, None, None
    validated = transport.clients.federation.validation is not None
    memories = () if resume is None else resume.memories
    objective = transport.clients.task.objective.name
    callbacks = CallbackList(
        experiment.callbacks, experiment.metrics, validated, not transport.remote, memories, objective
    )
    if resume is not None:
        transport.restore(resume.server, resume.clients, resume.round)
        history, number, kept, stopped = list(resume.history), resume.round, resume.kept, resume.stopped
        transport.compiled_from = resume.compiled_from
    transport.begin()
    for observer in observers:
        observer.start(transport.name, resume)
    while number < rounds and stopped is None:
        number += 1
        last = number == rounds
        evaluated = is_evaluated(number, rounds, schedule.evaluate_every, schedule.last_rounds)
        row = train_round(transport, number, evaluated=evaluated, deliver=last and not stages, final=last)
        confusion = row.pop("confusion", None)
        history.append(row)
        if transport.report().compiled and transport.compiled_from is None:
            transport.compiled_from = number
            logger.info("round %d: steps are compiled from here on", number)
        if KEEP in callbacks.after_round(row):
            kept = Kept(number, transport.server, transport.states.kept.copy())
        stopped = row.get("stopped")
        # copies: whoever keeps the snapshot can resume from it after later rounds
        now = (transport.states.kept.copy(), list(history), copy.deepcopy(callbacks.memories), kept, stopped)
        snapshot = Snapshot(number, transport.server, *now, transport.compiled_from)
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
    if kept is not None and kept.round != number:
        transport.states.clear()
        transport.restore(kept.server, kept.clients, kept.round)
        confusion = None
    if stopped is not None and transport.remote and not stages:  # the last round was not known to be the last
        transport.evaluate(transport.context(number), deliver=True)
    result = FinishedRun(transport, history, transport.name, last_rounds=schedule.last_rounds)
    result.confusion = confusion or _confusion(transport)
    for stage in stages:
        result.stages[stage.name] = run_stage(transport, stage, experiment.metrics)
        for observer in observers:
            observer.stage(result.stages[stage.name])
    result.preparing, result.compiled_from = transport.report().preparing, transport.compiled_from
    for observer in observers:
        observer.end(result)
    return result


def train_round(
    transport: Transport, number: int, *, evaluated: bool = False, deliver: bool = False, final: bool = False
) -> Row:
    """Carry out one round of training, and return its record; without a quorum nothing changes."""
    clock = _Clock(transport)
    row: Row = {"round": number, "lr": transport.clients.lr(number)}
    transport.server, record = exchange(
        transport,
        transport.context(number),
        lambda present: transport.draw_cohort(number, transport.sizes(present)),
    )
    transport.round = number
    row |= record
    if evaluated:
        now = transport.context(number)
        row |= evaluate(transport, now, transport.experiment.metrics, deliver=deliver, final=final)
        if (validation := transport.validate(now)) is not None:
            row["validation"] = validation
    row["seconds"] = clock.seconds()
    return row


def _confusion(transport: Transport) -> list[list[int]] | None:
    """Return the confusion matrix of the trained global model, where there is one and it can be tested."""
    clients = transport.clients
    test = (transport.test, clients.bf16)
    row = evaluate_global_model(transport.experiment.method, transport.server, clients.task, *test, final=True)
    return row.get("confusion")


def run_stage(transport: Transport, stage: Stage, metrics: Mapping[str, Metric] = NO_METRICS) -> StageResult:
    """Carry out one stage on top of a trained federation, which stays as it is.

    It has the number of the round after those that led to the present states, whether or not more were planned.
    """
    clock, task, method = _Clock(transport), transport.clients.task, transport.experiment.method
    stage = stage.on_method(method)
    transport.check(stage)
    server, before = transport.server, Row(bytes_up=0, bytes_down=0)
    if (earlier := stage.prerequisite()) is not None:
        earlier = earlier.on_method(method)
        calibrated, before = _stage_exchange(transport, earlier, server)
        server = stage.start_after_prerequisite(server, calibrated.server, task)
    after, row = _stage_exchange(transport, stage, server)
    for way in ("bytes_up", "bytes_down"):
        row[way] += before[way]
    for what in ("failed", "absent", "clipped", "left_out"):
        if what in before:
            row[what] = before[what] | row.get(what, {})
    for name, few in row.get("left_out", {}).items():
        transport.log(f"stage {stage.name}: {name} left out classes {few}, with fewer samples than its min_class_count")
    row |= evaluate(transport, after, metrics, deliver=True, final=True)
    row["seconds"] = clock.seconds()
    return StageResult(stage.name, after.server, after.states, row, global_model(stage, after.server, task))


def _say_what_is_not_robust(transport: Transport, stage: Stage) -> None:
    """An aggregator is for the rounds: tell the operator of a stage that has its own rule."""
    rule = transport.experiment.aggregator
    if rule is not None and type(stage).aggregate is not Stage.aggregate:
        transport.log(f"stage {stage.name} aggregates by its own rule: the aggregator {rule.name} is for the rounds")


def _stage_exchange(transport: Transport, stage: Stage, server: Tree) -> tuple[Context, Row]:
    """Exchange with all clients that are present, on a copy of their states; return the states after it."""
    context = Context(stage, server, transport.states.copy(), transport.round + 1)
    server, record = exchange(transport, context, Cohort)
    return replace(context, server=server), record


def evaluate(
    transport: Transport, context: Context, metrics: Mapping[str, Metric], deliver: bool = False, final: bool = False
) -> Row:
    """Test the global model and every client's own, and return the entries of a record.

    Args:
        transport: The way to the clients.
        context: The method or the stage whose models are tested, after the round that it names.
        metrics: Further metrics, by name.
        deliver: Whether these models are final, so that clients on other machines store theirs.
        final: Whether to record the confusion matrix as well.
    """
    task, test = transport.clients.task, (transport.test, transport.clients.bf16)
    row = evaluate_global_model(context.algorithm, context.server, task, *test, metrics, final)
    tests = transport.evaluate(context, deliver, metrics)
    row |= {"personal": None, "clients": None} if tests is None else evaluation.client_rows(tests)
    each = (None, None) if tests is None else (tests.accuracy, tests.loss)
    spread = measure_clients(metrics, *each)
    for name, more in (("metrics", spread.values), ("notes", spread.notes), ("notes", tests.notes if tests else {})):
        if more:
            row[name] = row.get(name, {}) | more
    return row


class _Clock:
    """Seconds since it was made, less those in which the transport compiled."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._begin, self._prepared = time.perf_counter(), transport.report().preparing

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._begin - (self._transport.report().preparing - self._prepared)
