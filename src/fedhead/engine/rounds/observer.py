"""Results of the round loop: snapshots, the finished run, and observers that receive them."""

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
    """States after a round that a callback decided to keep.

    Args:
        round: Number of the round, from 1.
        server: Server state after the round.
        clients: States of the clients that have taken part, as the transport stores them.
    """

    round: int
    server: Tree
    clients: Mapping[int, Any]


@dataclass(frozen=True)
class Snapshot:
    """Checkpointable state after a round. Tensors are shared; clone before modifying.

    Args:
        round: Number of the round, from 1.
        server: Server state after the round.
        clients: States of the clients that have taken part so far, as the transport stores them.
        history: Records of all rounds so far.
        memories: Memory of each callback.
        kept: States that the run ends with, if a callback has kept a round; else None.
        stopped: What stopped the run after this round: a callback, a function, or "privacy"; None: not stopped.
        compiled_from: First round with compiled steps; None: none so far. A run resumed before that round compiles from
            the same round on.
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
    """Records, states and stages of a finished run; users see it as a `fedhead.Result`.

    Args:
        transport: Transport with the trained states.
        rows: Records of all rounds.
        executor: Name of the executor, or of the transport.
        stages: Results of the stages by name.
        last_rounds: Number of final rounds that `accuracy_mean` averages.
        compile_seconds: Seconds spent on compiling and graph capture, excluded from `seconds`.
        compiled_from: First round with compiled steps; None: no compiled steps.
        confusion: Confusion matrix of the global test set after the rounds.
    """

    transport: Transport = field(repr=False)
    rows: list[Row] = field(repr=False)
    executor: str = ""
    stages: dict[str, StageResult] = field(repr=False, default_factory=dict)
    last_rounds: int = 1
    compile_seconds: float = 0.0
    compiled_from: int | None = None
    confusion: list[list[int]] | None = field(repr=False, default=None)

    @property
    def stage_rows(self) -> dict[str, Row]:
        """Record of each stage."""
        return {name: stage.metrics for name, stage in self.stages.items()}

    @property
    def server(self) -> Tree:
        """Final server state."""
        return self.transport.server

    @property
    def clients(self) -> dict[int, Any]:
        """Final states of the clients that took part."""
        return dict(self.transport.states.kept)

    @property
    def weights(self) -> Weights | None:
        """Weights of the global model; None if the method has no global model."""
        return global_model(self.transport.experiment.method, self.server, self.transport.clients.task)


class Observer:
    """Base class of a run's observers, such as progress bar, loggers and run folder. All hooks are optional."""

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Handle the start of the run, before the first round.

        Args:
            name: Name of the executor, or of the transport.
            resume: Snapshot that the run continues from; None: a new run.
        """

    def round(self, row: Row, snapshot: Snapshot) -> Any:
        """Handle a finished round; return `STOP` to end the run.

        Args:
            row: Record of the round.
            snapshot: State after the round.
        """

    def stop(self, snapshot: Snapshot) -> None:
        """Handle the end of a run that an observer has stopped.

        Args:
            snapshot: State after the last round; its `stopped` holds the reason.
        """

    def stage(self, result: StageResult) -> None:
        """Handle the result of a stage."""

    def end(self, result: FinishedRun) -> None:
        """Handle the finished run."""


class RoundFunction(Observer):
    """Observer that calls a function with the snapshot after each round.

    Args:
        function: Function of the snapshot; it may return `STOP`.
    """

    def __init__(self, function: Callable[[Snapshot], Any]):
        self._function = function

    def round(self, row: Row, snapshot: Snapshot) -> Any:
        """Call the function."""
        return self._function(snapshot)
