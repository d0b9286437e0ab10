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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage, bind
from fedhead.core.system.log import logger
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.compatibility import check_rounds
from fedhead.engine.clients.server import evaluate_global_model, global_model
from fedhead.engine.policies.sampling import Cohort
from fedhead.engine.rounds.callbacks import KEEP, STOP, Callback, CallbackList
from fedhead.engine.rounds.evaluated_rounds import is_evaluated
from fedhead.engine.rounds.exchange import exchange
from fedhead.engine.rounds.transport import AnyTransport
from fedhead.metrics.records import Row, RunMetrics, StageResult
from fedhead.metrics.registry import NO_METRICS, Metric, measure_clients


@dataclass(frozen=True)
class Kept:
    """The states after a round that a callback has kept.

    Args:
        round: The round, counted from 1.
        server: The server's state after it.
        clients: What the transport's states held for each client that had taken part.
    """

    round: int
    server: Tree
    clients: Mapping[int, Any]


@dataclass(frozen=True)
class Snapshot:
    """Everything from which a run goes on after a round; clone a tensor of it before you write into it.

    Args:
        round: The round, counted from 1.
        server: The server's state after it.
        clients: What the transport's states hold for each client that took part so far.
        history: The records of all rounds so far.
        memories: What each callback remembers.
        kept: The models that the run ends with, where a callback has kept a round's.
        stopped: Who stopped the run after this round; None: nobody.
        compiled_from: From which round on its steps were compiled; None: they were not yet, or never are. A run that is
            resumed before that round is compiled from the same one on.
    """

    round: int
    server: Tree
    clients: Mapping[int, Any]
    history: list[Row]
    memories: list[dict[str, Any]] = field(default_factory=list)
    kept: Kept | None = None
    stopped: str | None = None
    compiled_from: int | None = None


@dataclass
class FinishedRun(RunMetrics):
    """A finished run: its records, its states and its stages; users see it as a `fedhead.Result`.

    Args:
        transport: The trained federation.
        rows: The records of all rounds.
        executor: Name of the executor, or of the transport.
        stages: The results of the stages, by name.
        last_rounds: Over how many of the last rounds `accuracy_mean` is taken.
        preparing: Seconds that training waited for compiling and capturing, which `seconds` leaves out.
        compiled_from: From which round on the steps were compiled; None: they never were.
        confusion: Global test samples by true and predicted class, after the rounds.
    """

    transport: AnyTransport = field(repr=False)
    rows: list[Row] = field(repr=False)
    executor: str = ""
    stages: dict[str, StageResult] = field(repr=False, default_factory=dict)
    last_rounds: int = 1
    preparing: float = 0.0
    compiled_from: int | None = None
    confusion: list[list[int]] | None = field(repr=False, default=None)

    @property
    def stage_rows(self) -> dict[str, Row]:
        """The records of the stages, by name."""
        return {name: stage.metrics for name, stage in self.stages.items()}

    @property
    def server(self) -> Tree:
        """The server's final state."""
        return self.transport.server

    @property
    def clients(self) -> dict[int, Any]:
        """What each client that took part has kept."""
        return dict(self.transport.states.kept)

    @property
    def weights(self) -> Weights | None:
        """The global model, where the method has one."""
        clients = self.transport.clients
        return global_model(clients.method, self.server, clients.task)

    def calibrate(self, stage: Stage) -> StageResult:
        """Run a stage, such as `CCVR()`, on the trained federation; the run itself stays as it is.

        Args:
            stage: The stage.

        Returns:
            Its accuracies, its weights and the states that it left.

        Raises:
            BadInput: If the stage does not go with the method, the models or the transport.
        """
        return run_stage(self.transport, stage)


# -- the run ------------------------------------------------------------------------------------------
def run(
    transport: AnyTransport,
    *,
    stages: Sequence[Stage] = (),
    evaluate_every: int = 1,
    last_rounds: int = 1,
    metrics: Mapping[str, Metric] = NO_METRICS,
    callbacks: Sequence[Callback] = (),
    resume: Snapshot | None = None,
    on_round: Callable[[Snapshot], Any] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> FinishedRun:
    """Train a federation, then run the stages.

    Args:
        transport: The way to the clients, which also holds the state of the server.
        stages: What follows the rounds, in order.
        evaluate_every: Evaluate after every so many rounds; the last `last_rounds` are always evaluated.
        last_rounds: Over how many of the last rounds `FinishedRun.accuracy_mean` is taken.
        metrics: Further metrics of the global model, recorded wherever its accuracy is.
        callbacks: What may stop the run or keep a round's models.
        resume: Where to go on, from an earlier run's `on_round`.
        on_round: Called with a snapshot after each round; the run ends after a round for which it returns `STOP`.
        on_start: Called with the transport's name once it is ready.

    Returns:
        The finished run.

    Raises:
        BadInput: If a stage does not go with the method, the models or the transport.
        FedheadError: If a round has no quorum, or, without one, as soon as a client fails.
    """
    method, rounds = transport.clients.method, transport.clients.task.rounds
    stages = bind(stages, method)
    check_rounds(rounds, stages)
    for stage in stages:
        transport.check(stage)  # before any compute
        _say_what_is_not_robust(transport, stage)
    history: list[Row] = []
    begin, kept, stopped, confusion = 0, None, None, None
    validated = transport.clients.federation.validation is not None
    memories = () if resume is None else resume.memories
    objective = transport.clients.task.objective.name
    watching = CallbackList(callbacks, metrics, validated, transport.keeps_states, memories, objective)
    if resume is not None:
        transport.restore(resume.server, resume.clients, resume.round)
        history, begin, kept, stopped = list(resume.history), resume.round, resume.kept, resume.stopped
        transport.compiled_from = resume.compiled_from
    transport.begin()
    if on_start is not None:
        on_start(transport.name)
    number = begin
    while number < rounds and stopped is None:
        number += 1
        last = number == rounds
        row = train_round(
            transport,
            number,
            evaluated=is_evaluated(number, rounds, evaluate_every, last_rounds),
            deliver=last and not stages,
            metrics=metrics,
            final=last,
        )
        confusion = row.pop("confusion", None)
        history.append(row)
        if transport.compiled and transport.compiled_from is None:
            transport.compiled_from = number
            logger.info("round %d: steps are compiled from here on", number)
        if KEEP in watching.after_round(row):
            kept = Kept(number, transport.server, transport.states.kept.copy())
        stopped = row.get("stopped")
        # copies: whoever keeps the snapshot can resume from it after later rounds
        now = (transport.states.kept.copy(), list(history), copy.deepcopy(watching.memories), kept, stopped)
        snapshot = Snapshot(number, transport.server, *now, transport.compiled_from)
        if on_round is not None and on_round(snapshot) is STOP:
            stopped = row.setdefault("stopped", "on_round")
            if not is_evaluated(number, rounds, evaluate_every, last_rounds):
                logger.warning(
                    "stopped at round %d, which is not evaluated: its accuracy and losses are of an earlier round, or "
                    "none; stop after a multiple of %d rounds, or test the model by result.evaluate(x, y)",
                    number,
                    evaluate_every,
                )
    transport.end_rounds()
    if kept is not None and kept.round != number:
        transport.states.clear()
        transport.restore(kept.server, kept.clients, kept.round)
        confusion = None
    if stopped is not None and transport.delivers and not stages:  # the last round was not known to be the last
        transport.evaluate(method, transport.server, transport.states, number, deliver=True)
    result = FinishedRun(transport, history, transport.name, last_rounds=last_rounds)
    result.confusion = confusion or _confusion(transport)
    for stage in stages:
        result.stages[stage.name] = run_stage(transport, stage, metrics)
    result.preparing, result.compiled_from = transport.preparing, transport.compiled_from
    return result


def train_round(
    transport: AnyTransport,
    number: int,
    *,
    evaluated: bool = False,
    deliver: bool = False,
    metrics: Mapping[str, Metric] = NO_METRICS,
    final: bool = False,
) -> Row:
    """Carry out one round of training, and return its record; without a quorum nothing changes."""
    clock, clients = _Clock(transport), transport.clients
    row: Row = {"round": number, "lr": clients.lr(number)}
    transport.server, record = exchange(
        transport,
        clients.method,
        transport.server,
        transport.states,
        number,
        lambda present: clients.draw_cohort(number, transport.sizes(present)),
    )
    transport.round = number
    row |= record
    if evaluated:
        now = (transport.server, transport.states, number)
        row |= evaluate(transport, clients.method, *now, deliver=deliver, metrics=metrics, final=final)
        if (validation := transport.validate(clients.method, *now, metrics)) is not None:
            row["validation"] = validation
    row["seconds"] = clock.seconds()
    return row


def _confusion(transport: AnyTransport) -> list[list[int]] | None:
    """Return the confusion matrix of the trained global model, where there is one and it can be tested."""
    clients = transport.clients
    test = (transport.test, clients.bf16)
    row = evaluate_global_model(clients.method, transport.server, clients.task, *test, final=True)
    return row.get("confusion")


def run_stage(transport: AnyTransport, stage: Stage, metrics: Mapping[str, Metric] = NO_METRICS) -> StageResult:
    """Carry out one stage on top of a trained federation, which stays as it is.

    It has the number of the round after those that led to the present states, whether or not more were planned.
    """
    clock, task = _Clock(transport), transport.clients.task
    stage = stage.on_method(transport.clients.method)
    transport.check(stage)
    server, before = transport.server, Row(bytes_up=0, bytes_down=0)
    if (earlier := stage.prerequisite()) is not None:
        earlier = earlier.on_method(transport.clients.method)
        calibrated, _, before = _stage_exchange(transport, earlier, server)
        server = stage.start_after_prerequisite(server, calibrated, task)
    server, states, row = _stage_exchange(transport, stage, server)
    for way in ("bytes_up", "bytes_down"):
        row[way] += before[way]
    for what in ("failed", "absent", "clipped", "left_out"):
        if what in before:
            row[what] = before[what] | row.get(what, {})
    for name, few in row.get("left_out", {}).items():
        transport.log(f"stage {stage.name}: {name} left out classes {few}, with fewer samples than its min_class_count")
    row |= evaluate(transport, stage, server, states, transport.round + 1, deliver=True, metrics=metrics, final=True)
    row["seconds"] = clock.seconds()
    return StageResult(stage.name, server, states, row, global_model(stage, server, task))


def _say_what_is_not_robust(transport: AnyTransport, stage: Stage) -> None:
    """An aggregator is for the rounds: tell the operator of a stage that has its own rule."""
    rule = transport.clients.aggregator
    if rule is not None and type(stage).aggregate is not Stage.aggregate:
        transport.log(f"stage {stage.name} aggregates by its own rule: the aggregator {rule.name} is for the rounds")


def _stage_exchange(transport: AnyTransport, stage: Stage, server: Tree) -> tuple[Tree, Any, Row]:
    """One exchange with all clients that are present, on a copy of their states."""
    states = transport.states.copy()
    server, record = exchange(transport, stage, server, states, transport.round + 1, Cohort)
    return server, states, record


def evaluate(
    transport: AnyTransport,
    algorithm: Algorithm,
    server: Tree,
    states: Any,
    round: int,
    *,
    deliver: bool = False,
    metrics: Mapping[str, Metric] = NO_METRICS,
    final: bool = False,
) -> Row:
    """Test the global model and every client's own, and return the entries of a record.

    Args:
        transport: The way to the clients.
        algorithm: The method or the stage whose models are tested.
        server: The server's state.
        states: The clients' states.
        round: The number of the round that was just finished.
        deliver: Whether these models are final, so that clients on other machines store theirs.
        metrics: Further metrics, by name.
        final: Whether to record the confusion matrix as well.
    """
    clients = transport.clients
    row = evaluate_global_model(algorithm, server, clients.task, transport.test, clients.bf16, metrics, final)
    tests = transport.evaluate(algorithm, server, states, round, deliver, metrics)
    row |= {"personal": None, "clients": None} if tests is None else evaluation.client_rows(tests)
    each = (None, None) if tests is None else (tests.accuracy, tests.loss)
    spread = measure_clients(metrics, *each)
    for name, more in (("metrics", spread.values), ("notes", spread.notes), ("notes", tests.notes if tests else {})):
        if more:
            row[name] = row.get(name, {}) | more
    return row


class _Clock:
    """Seconds since it was made, less those in which the transport compiled."""

    def __init__(self, transport: AnyTransport):
        self._transport = transport
        self._begin, self._prepared = time.perf_counter(), transport.preparing

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._begin - (self._transport.preparing - self._prepared)
