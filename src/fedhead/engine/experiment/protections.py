"""Protections of an experiment: binding to its stages, and checks."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.privacy.base import Protection


def protect(stages: Sequence[Stage], privacy: Sequence[Protection]) -> tuple[Stage, ...]:
    """Return the stages with the differential privacy of what their clients send.

    Raises:
        BadInput: If a stage can't be protected.
    """
    releases = sum(any(step.class_rows for step in stage.chain()) for stage in stages)
    for protection in privacy:
        if protection.covers == "stages":
            stages = [stage.protect(protection, releases) for stage in stages]
    return tuple(stages)


def check(
    privacy: Sequence[Protection], method: Method, stages: Sequence[Stage], uploads: Sequence[Upload], rounds: int
) -> None:
    """Check that each protection has something to protect; warn if others than the protected replies leave clients.

    Raises:
        BadInput: If a protection has no effect, two protect the same, or an upload changes what is protected.
    """
    covered = [protection.covers for protection in privacy]
    for protection in privacy:
        if covered.count(protection.covers) > 1:
            raise BadInput(f"privacy: two protections of the {protection.covers}: name one")
        if protection.covers == "stages" and not stages:
            raise BadInput(f"privacy: {protection.name} protects stages, and there is none: add stages=[ridge]")
        if protection.covers == "rounds" and not rounds:
            raise BadInput(f"privacy: {protection.name} protects rounds, and there is none: set rounds")
    for step in uploads if "stages" in covered else ():
        if not step.spares_sums and step.hides(2) == 1:
            raise BadInput(f"privacy: the upload {step.name} may change statistics before their noise: leave it out")
    if privacy and rounds and "rounds" not in covered:
        warn_once(f"privacy protects the stages only: the updates of {method.name}'s rounds are sent without noise")
    if privacy and stages and "stages" not in covered:
        warn_once(f"privacy protects the rounds only: stage {stages[0].name} sends its replies without noise")


def check_samples(privacy: Sequence[Protection], samples: int) -> None:
    """Raise `BadInput` if a δ is so large that releasing a random sample would satisfy it."""
    for protection in privacy if samples else ():
        if protection.delta * samples >= 1:
            raise BadInput(
                f"privacy: {protection.name}: delta is {protection.delta:g}, it must be below 1/n = {1 / samples:.2g}, "
                f"for n = {samples} training samples"
            )
