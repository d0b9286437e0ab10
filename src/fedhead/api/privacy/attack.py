"""Attacks and their success."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fedhead.calibration.statistics import Statistics
from fedhead.calibration.symmetric import unpack
from fedhead.privacy import attacks
from fedhead.report.table import Table


@dataclass(frozen=True)
class Attack:
    """One attack and its success.

    Args:
        name: Name of the attack.
        on: What was attacked: a stage's statistics, or the model.
        measure: Meaning of the numbers.
        unprotected: Success on what clients send without the run's protections; None: not known.
        protected: Success on what the server sees in this run; None: not known.
        guess: Success of a guess.
    """

    name: str
    on: str
    measure: str
    unprotected: float | None
    protected: float | None
    guess: float = 0.0


@dataclass(frozen=True)
class Audit:
    """Attacks and the protections that they were measured with."""

    protections: list[str]
    attacks: list[Attack]

    def to_json(self) -> dict[str, Any]:
        """Return the audit for JSON."""
        return asdict(self)

    def table(self) -> Table:
        """Return the attacks as a table."""

        def text(value: float | None) -> str:
            return "–" if value is None else f"{value:.3g}"

        rows = [[a.name, a.on, a.measure, text(a.unprotected), text(a.protected), text(a.guess)] for a in self.attacks]
        protections = ", ".join(self.protections) or "none"
        head = ["attack", "on", "measure", "unprotected", "protected", "guess"]
        return Table(f"protections: {protections}", head, rows)

    def __getitem__(self, name: str) -> Attack:
        """Return the first attack with a name."""
        return next(attack for attack in self.attacks if attack.name == name)


def features_of(statistics: Statistics) -> dict[int, Tensor]:
    """Reconstruct the features of all classes of one or two samples, by class."""
    full = statistics.kind == "full"
    by_class: dict[int, Tensor] = {}
    for c in range(statistics.classes):
        if 0.5 <= float(statistics.count[c]) < 2.5:
            outer = unpack(statistics.outer[c], statistics.features) if full else None
            features = attacks.features_of_class(float(statistics.count[c]), statistics.sum[c], outer)
            by_class |= {} if features is None else {c: features}
    return by_class


def minus(new: Statistics, old: Statistics) -> Statistics:
    """Return the difference of two statistics."""
    return Statistics(new.count - old.count, new.sum - old.sum, new.outer - old.outer)
