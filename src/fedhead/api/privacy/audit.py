"""Attacks on a run, or on files of statistics, with and without the run's protections."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch

from fedhead.api.load import load
from fedhead.api.privacy.attack import Attack, Audit, features_of, minus
from fedhead.api.privacy.run_attacks import RunAudit
from fedhead.api.result import Result
from fedhead.calibration.files import load_statistics
from fedhead.calibration.statistics import Statistics
from fedhead.core.system.errors import BadInput, require


def audit(
    target: Result | Statistics | str | PathLike[str],
    earlier: Statistics | str | PathLike[str] | None = None,
    *,
    min_class_count: int = 5,
    shadows: int = 16,
    releases: int = 2000,
    seed: int = 0,
) -> Audit:
    """Attack a run, or the statistics of a site, and report what an attacker learns.

    On a run, the attacks measure themselves against the clients' samples, with what clients send as it is
    (`unprotected`) and with the run's protections and `min_class_count` (`protected`).

    Args:
        target: Run, its folder, or statistics of a site or their file.
        earlier: Earlier statistics of the same site, which are compared with `target`.
        min_class_count: Smallest class of which sites send statistics; 1: no such policy.
        shadows: Number of shadow models of the membership test; 0: without it.
        releases: Number of noisy releases with a canary, and as many without it.
        seed: Seed of the attacks' random choices.

    Returns:
        The attacks.

    Raises:
        BadInput: If the target is neither a run nor statistics, or an argument is out of range.

    >>> from fedhead.models import build
    >>> from fedhead.calibration.collect import statistics_of
    >>> sent = statistics_of(build("mlp", (4,), 2), torch.randn(3, 4), torch.tensor([0, 0, 1]))
    >>> audit(sent)["reconstruction"].unprotected  # both samples of class 0, and that of class 1
    3.0
    """
    require(min_class_count >= 1, f"min_class_count: {min_class_count} is out of range, it must be at least 1")
    require(shadows == 0 or shadows >= 4, f"shadows: {shadows} is out of range, it must be 0, or at least 4")
    require(releases >= 100, f"releases: {releases} is out of range, it must be at least 100")
    if isinstance(target, str | PathLike):
        target = load(target) if Path(target).is_dir() else load_statistics(Path(target))
    if isinstance(target, Statistics):
        return _audit_statistics(target, earlier, min_class_count)
    require(earlier is None, "earlier: this is for statistics; a run's own releases are compared with each other")
    return RunAudit(target, min_class_count, shadows, releases, seed).audit()


def _audit_statistics(statistics: Statistics, earlier: Statistics | str | PathLike[str] | None, minimum: int) -> Audit:
    kept = statistics.of_classes(torch.nonzero(statistics.count >= minimum).flatten())
    samples, left = (sum(map(len, features_of(each).values())) for each in (statistics, kept))
    rows = [Attack("reconstruction", "statistics", "samples whose features are in them", float(samples), float(left))]
    if earlier is not None:
        old = earlier if isinstance(earlier, Statistics) else load_statistics(Path(earlier))
        for name in ("extractor", "transform", "classes", "features", "kind"):
            if getattr(old, name) != getattr(statistics, name):
                raise BadInput(f"earlier: these statistics have another {name}: give two of one site and one model")
        pair = (statistics, old) if statistics.count.sum() >= old.count.sum() else (old, statistics)
        samples = sum(map(len, features_of(minus(*pair)).values()))
        measure = "samples that one has and the other has not, whose features are their difference"
        rows.append(Attack("differencing", "statistics", measure, float(samples), None))
    counted = (float((each.count > 0).sum()) for each in (statistics, kept))
    rows.append(Attack("label counts", "statistics", "classes whose number of samples is known", *counted))
    return Audit([f"min_class_count={minimum}"] if minimum > 1 else [], rows)
