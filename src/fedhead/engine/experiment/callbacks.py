"""Callbacks: called with each round's record, they may stop the run or keep the round's models.

They watch the training loss or metrics on validation samples (`validation`): a share of the clients' training samples
that no client trains on. Test samples are never used. A callback is a frozen dataclass. Its memory is a dictionary that
belongs to the run and is stored in every checkpoint, so a resumed run behaves like an uninterrupted one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fedhead.core.components.component import Component
from fedhead.core.components.ranges import AtLeast
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, user_code
from fedhead.metrics.records import Row
from fedhead.metrics.registry import Metric

# Built-in validation metrics, and whether high or low values are good.
VALIDATED = {"accuracy": "max", "loss": "min", "personal": "max", "personal_loss": "min"}
_BETTER = {**VALIDATED, "train_loss": "min"}


class Action(enum.Flag):
    """Request of a callback to the run; combine several with `|`."""

    STOP = enum.auto()
    KEEP = enum.auto()


STOP = Action.STOP
"""Action that ends training after this round."""
KEEP = Action.KEEP
"""Action that makes this round's models the final ones, unless a later round is kept."""


@dataclass(frozen=True)
class Callback(Component):
    """Base class of callbacks, called after each round."""

    def check(self, metrics: Mapping[str, Metric], validated: bool) -> None:
        """Raise `BadInput` if the callback can't be used in this run; called before training.

        Args:
            metrics: Additional metrics of the run by name.
            validated: Whether the clients have validation samples.
        """

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Decide after a round.

        Args:
            row: Record of the round, without scores on test samples. In evaluated rounds, `row["validation"]` holds the
                validation metrics.
            memory: Memory of the callback between rounds; it may store JSON values in it.

        Returns:
            `fedhead.STOP`, `fedhead.KEEP`, both, or None to continue.
        """
        raise NotImplementedError


CALLBACKS = Registry.of(Callback, home=["fedhead.engine.experiment.callbacks"], needs=["after_round"])
"""Registry of callbacks."""
callback = CALLBACKS.decorator
"""Decorator that registers a subclass of `Callback` under a name, for recipes and the command line."""


# -- built-in callbacks --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Watcher(Callback):
    """Base class of callbacks that compare one metric with its best value so far.

    Args:
        metric: Metric to watch. On validation samples: `accuracy` and `loss` of the global model, `personal` and
            `personal_loss` (means over the clients' personal models), or one of the run's `metrics`. `train_loss` needs
            no validation samples.
        min_delta: Minimum change that counts as an improvement.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric declares.
    """

    metric: str = "accuracy"
    min_delta: Annotated[float, AtLeast(0)] = 0.0
    mode: Literal["auto", "min", "max"] = "auto"

    def check(self, metrics: Mapping[str, Metric], validated: bool) -> None:
        """Raise `BadInput` if the metric is not computed, or if it needs missing validation samples."""
        if self.metric == "train_loss":
            return
        if self.metric not in VALIDATED and self.metric not in metrics:
            known = ", ".join([*_BETTER, *metrics])
            raise BadInput(
                f"callback {self.name} watches {self.metric!r}, which is not measured: add it to metrics, or watch one "
                f"of {known}"
            )
        if not validated:
            raise BadInput(
                f"callback {self.name} watches {self.metric} on validation samples, and there are none (test samples "
                "never decide): set validation, such as validation=0.1, or watch train_loss"
            )
        if self._mode(metrics) == "auto":
            raise BadInput(f"callback {self.name}: set whether high or low values of {self.metric} are good, mode=max")

    def _mode(self, metrics: Mapping[str, Metric]) -> str:
        if self.mode != "auto":
            return self.mode
        return _BETTER.get(self.metric) or metrics[self.metric].better or "auto"

    def _improved(self, row: Row, memory: dict[str, Any]) -> bool | None:
        """Return whether a round is the best so far, and store its value; None for a round without a value."""
        value = row.get("train_loss") if self.metric == "train_loss" else row.get("validation", {}).get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        sign = -1 if memory["mode"] == "min" else 1
        if "best" in memory and sign * (value - memory["best"]) <= self.min_delta:
            return False
        memory.update(best=value, best_round=row["round"])
        return True


@callback("early_stopping")
@dataclass(frozen=True)
class EarlyStopping(Watcher):
    """Early stopping: ends training when a metric stops improving (Prechelt, 1998).

    Args:
        metric: Metric to watch, see `Watcher`.
        min_delta: Minimum change that counts as an improvement.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric declares.
        patience: Number of evaluated rounds without improvement after which to stop.
    """

    patience: Annotated[int, AtLeast(1)] = 5

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Count the rounds since the best one, and stop when patience is exhausted."""
        improved = self._improved(row, memory)
        if improved is None:
            return None
        memory["wait"] = 0 if improved else memory.get("wait", 0) + 1
        return STOP if memory["wait"] >= self.patience else None


@callback("best_model")
@dataclass(frozen=True)
class BestModel(Watcher):
    """Best-model selection: the run ends with the models of the round with the best metric.

    Args:
        metric: Metric to watch, see `Watcher`.
        min_delta: Minimum change that counts as an improvement.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric declares.
    """

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Keep the round if it is the best so far."""
        return KEEP if self._improved(row, memory) else None


# -- in the round loop ----------------------------------------------------------------------------------
class CallbackList:
    """Callbacks of a run with their memories.

    Args:
        callbacks: Callbacks, in order.
        metrics: Additional metrics of the run.
        validated: Whether the clients have validation samples.
        memories: Memory of each callback, for a resumed run.
        objective: Name of the run's objective.

    Raises:
        BadInput: If a callback can't be used in this run.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        metrics: Mapping[str, Metric],
        validated: bool,
        memories: Sequence[Mapping[str, Any]] = (),
        objective: str = "multiclass",
    ):
        self.callbacks = list(callbacks)
        for rule in self.callbacks:
            rule.check(metrics, validated)
            if objective == "regression" and isinstance(rule, Watcher) and rule.metric in ("accuracy", "personal"):
                raise BadInput(
                    f"callback {rule.name} watches {rule.metric}, which objective=regression lacks: watch loss, "
                    "personal_loss, train_loss or one of the run's metrics"
                )
        self.memories = [dict(memory) for memory in memories] or [{} for _ in self.callbacks]
        for rule, memory in zip(self.callbacks, self.memories, strict=True):
            if isinstance(rule, Watcher):
                memory.setdefault("mode", rule._mode(metrics))

    def after_round(self, row: Row) -> Action:
        """Call all callbacks and combine their actions; record which one stops the run and whether models are kept."""
        action = Action(0)
        for rule, memory in zip(self.callbacks, self.memories, strict=True):
            with user_code(f"callback {rule.name}"):
                answer = rule.after_round(row, memory)
            if answer is None:
                continue
            if not isinstance(answer, Action):
                raise BadInput(f"callback {rule.name} returned {answer!r}: return fedhead.STOP, fedhead.KEEP or None")
            if STOP in answer:
                row.setdefault("stopped", rule.name)
            action |= answer
        if KEEP in action:
            row["kept"] = True
        return action

    def without_value(self) -> list[str]:
        """Return a warning for each callback whose metric had no value in any round."""
        pairs = zip(self.callbacks, self.memories, strict=True)
        return [
            f"callback {rule.name} had no effect: {rule.metric} had no value in any round"
            for rule, memory in pairs
            if isinstance(rule, Watcher) and "best" not in memory
        ]
