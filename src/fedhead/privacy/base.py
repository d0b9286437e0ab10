"""Base class of protections, and their registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from fedhead.core.components.component import Component
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.components.registry import Registry


@dataclass(frozen=True)
class Protection(Component):
    """Differential privacy of what clients send in a run.

    Args:
        epsilon: ε, budget of the whole run.
        delta: δ, probability that the bound does not hold; below 1/n for n training samples.
        test_seed: For tests: seed of the noise, in place of the operating system's entropy. It protects nothing.

    Attributes:
        covers: What it protects: the replies of the rounds, or those of the stages.
    """

    covers: ClassVar[Literal["rounds", "stages"]]
    epsilon: Annotated[float, Above(0), AtMost(1e20)] = 1.0  # ε, budget of the whole run
    delta: Annotated[float, Above(0), Below(1)] = 1e-5  # δ, below 1/n for n training samples
    test_seed: Annotated[int, AtLeast(0)] | None = field(default=None, kw_only=True)  # for tests: noise from a seed


PROTECTIONS = Registry.of(Protection, home=["fedhead.privacy"])
"""Registry of protections."""
protection = PROTECTIONS.decorator
"""Class decorator that registers a subclass of `Protection` under a name for recipes and the command line."""
