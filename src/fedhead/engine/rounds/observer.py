"""Results of the round loop: snapshots, the finished run, and the observers that are told of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.transport import Transport
from fedhead.metrics.records import Row, RunMetrics, StageResult


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
    """Checkpointable state after a round. Tensors are shared; clone before modifying.

    Args:
        round: The round, counted from 1.
        server: The server's state after it, with the attributes that components have changed
            (`ChangedAttributes`).
        clients: What the transport's states hold for each client that took part so far.
        history: The records of all rounds so far.
        memories: What each callback remembers.
        kept: The models that the run ends with, where a callback has kept a round's.
        stopped: Who stopped the run after this round; None: nobody.
        compiled_from: The first round whose steps were compiled; None: none so far. A run that is resumed before that
            round is compiled from the same one on.
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
        compiled_from: The first round whose steps were compiled; None: none were.
        confusion: Global test samples by true and predicted class, after the rounds.
    """

    transport: Transport = field(repr=False)
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
        return global_model(self.transport.experiment.method, self.server, self.transport.clients.task)


class Observer:
    """Watches a run: a progress bar, loggers, the run folder. Its hooks do nothing unless they are overridden."""

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Begin, before the first round.

        Args:
            name: Name of the executor, or of the transport.
            resume: The state that the run continues from; None: it begins.
        """

    def round(self, row: Row, snapshot: Snapshot) -> Any:
        """Note a round; `STOP` ends the run after it.

        Args:
            row: The round's record.
            snapshot: The state after it.
        """

    def stop(self, snapshot: Snapshot) -> None:
        """Note that an observer has ended the run.

        Args:
            snapshot: The state after the last round, with the reason.
        """

    def stage(self, result: StageResult) -> None:
        """Note the result of a stage."""

    def end(self, result: FinishedRun) -> None:
        """Note the finished run."""


class RoundFunction(Observer):
    """A function that is called with the snapshot after each round.

    Args:
        function: The function; it may return `STOP`.
    """

    def __init__(self, function: Callable[[Snapshot], Any]):
        self._function = function

    def round(self, row: Row, snapshot: Snapshot) -> Any:
        """Call the function."""
        return self._function(snapshot)
