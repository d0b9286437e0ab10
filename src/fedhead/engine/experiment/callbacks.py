"""Callbacks: after each round they see its record and may stop the run or keep the round's models.

What they watch is measured on validation samples, a share of the clients' training samples that no client trains on
(`validation`), or is the training loss; test samples never decide. A callback is a frozen dataclass of settings. What
it remembers from round to round is a dictionary that belongs to the run and is stored with every checkpoint, so that a
resumed run goes on as if it had not been stopped.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedhead.core.components.component import Component
from fedhead.core.components.ranges import AtLeast
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, user_code
from fedhead.metrics.records import Row
from fedhead.metrics.registry import Metric

# What is always measured on validation samples, and which values of it are good.
VALIDATED = {"accuracy": "max", "loss": "min", "personal": "max", "personal_loss": "min"}
_BETTER = {**VALIDATED, "train_loss": "min"}


class Action(enum.Flag):
    """A callback's request to the run; several can be joined by `|`."""

    STOP = enum.auto()
    KEEP = enum.auto()


STOP = Action.STOP
"""A callback's answer that ends training after this round."""
KEEP = Action.KEEP
"""A callback's answer that ends the run with the models of this round, unless a later one is kept."""


@dataclass(frozen=True)
class Callback(Component):
    """A rule that is asked after each round.

    Attributes:
        keeps: Whether it may return `KEEP`; sites on other machines don't have the states of earlier rounds.
    """

    keeps: ClassVar[bool] = False

    def check(self, metrics: Mapping[str, Metric], validated: bool) -> None:
        """Raise `BadInput`, before anything is computed, if the callback can't be used in this run.

        Args:
            metrics: The run's further metrics, by name.
            validated: Whether the clients have validation samples.
        """

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Decide after a round.

        Args:
            row: The record of the round; `row["validation"]` holds what was measured on validation samples, in rounds
                that were evaluated.
            memory: What the callback remembers; it may write JSON values into it.

        Returns:
            `fedhead.STOP`, `fedhead.KEEP`, both, or None to go on.
        """
        raise NotImplementedError


CALLBACKS = Registry.of(Callback, home=["fedhead.engine.experiment.callbacks"], needs=["after_round"])
"""The callbacks by name."""
callback = CALLBACKS.decorator
"""Register a callback under a name, for recipes and the command line: a decorator of subclasses of `Callback`."""


# -- the built-in ones ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Watcher(Callback):
    """A callback that compares one metric with its best value so far.

    Args:
        metric: What is watched, on validation samples: `accuracy`, `loss` (of the global model), `personal`,
            `personal_loss` (the mean over clients of their own models), or one of the run's `metrics`; or `train_loss`,
            which needs no validation samples.
        min_delta: By how much a value must be better to count as better.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric says.
    """

    metric: str = "accuracy"
    min_delta: Annotated[float, AtLeast(0)] = 0.0
    mode: Literal["auto", "min", "max"] = "auto"

    def check(self, metrics: Mapping[str, Metric], validated: bool) -> None:
        """Refuse a metric that is not measured, or that only test samples could give."""
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
            raise BadInput(f"callback {self.name}: say whether high or low values of {self.metric} are good, mode=max")

    def _mode(self, metrics: Mapping[str, Metric]) -> str:
        if self.mode != "auto":
            return self.mode
        return _BETTER.get(self.metric) or metrics[self.metric].better or "auto"

    def _improved(self, row: Row, memory: dict[str, Any]) -> bool | None:
        """Say whether a round is the best so far, and remember its value; None for a round without one."""
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
    """Stop when a metric has not become better for a number of evaluated rounds (Prechelt, 1998).

    Args:
        metric: What is watched, see `Watcher`.
        min_delta: By how much a value must be better to count as better.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric says.
        patience: How many evaluated rounds in a row may be no better.
    """

    patience: Annotated[int, AtLeast(1)] = 5

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Count the rounds since the best one."""
        improved = self._improved(row, memory)
        if improved is None:
            return None
        memory["wait"] = 0 if improved else memory.get("wait", 0) + 1
        return STOP if memory["wait"] >= self.patience else None


@callback("best_model")
@dataclass(frozen=True)
class BestModel(Watcher):
    """End with the models of the round in which a metric was best, in place of the last one's.

    Args:
        metric: What is watched, see `Watcher`.
        min_delta: By how much a value must be better to count as better.
        mode: Whether high ("max") or low ("min") values are good; "auto": as the metric says.
    """

    keeps: ClassVar[bool] = True

    def after_round(self, row: Row, memory: dict[str, Any]) -> Action | None:
        """Keep each best round."""
        return KEEP if self._improved(row, memory) else None


# -- in the round loop ----------------------------------------------------------------------------------
class CallbackList:
    """The callbacks of a run with what they remember.

    Args:
        callbacks: The callbacks, in order.
        metrics: The run's further metrics.
        validated: Whether the clients have validation samples.
        keeps_states: Whether the clients' states of earlier rounds are still there.
        memories: What each remembers, of a run that is resumed.
        objective: Name of the run's objective.

    Raises:
        BadInput: If a callback can't be used in this run.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        metrics: Mapping[str, Metric],
        validated: bool,
        keeps_states: bool = True,
        memories: Sequence[Mapping[str, Any]] = (),
        objective: str = "multiclass",
    ):
        self.callbacks = list(callbacks)
        for one in self.callbacks:
            one.check(metrics, validated)
            if objective == "regression" and isinstance(one, Watcher) and one.metric in ("accuracy", "personal"):
                raise BadInput(
                    f"callback {one.name} watches {one.metric}, which objective=regression has not: watch loss, "
                    "personal_loss, train_loss or one of the run's metrics"
                )
            if one.keeps and not keeps_states:
                raise BadInput(
                    f"callback {one.name} keeps the models of a round, and sites don't have the states of earlier "
                    "ones: it is for simulations only"
                )
        self.memories = [dict(memory) for memory in memories] or [{} for _ in self.callbacks]
        if len(self.memories) != len(self.callbacks):
            raise BadInput(
                f"callbacks: there are {len(self.callbacks)}, and the run was begun with {len(self.memories)}: give "
                "the same ones to resume"
            )
        for one, memory in zip(self.callbacks, self.memories, strict=True):
            if isinstance(one, Watcher):
                memory.setdefault("mode", one._mode(metrics))

    def after_round(self, row: Row) -> Action:
        """Ask all callbacks; notes in the record who stops the run and whether its models are kept."""
        action = Action(0)
        for one, memory in zip(self.callbacks, self.memories, strict=True):
            with user_code(f"callback {one.name}"):
                asked = one.after_round(row, memory)
            if asked is None:
                continue
            if not isinstance(asked, Action):
                raise BadInput(f"callback {one.name} returned {asked!r}: return fedhead.STOP, fedhead.KEEP or None")
            if KEEP in asked and not one.keeps:
                raise BadInput(f"callback {one.name} returned KEEP: set keeps = True in its class")
            if STOP in asked:
                row.setdefault("stopped", one.name)
            action |= asked
        if KEEP in action:
            row["kept"] = True
        return action
