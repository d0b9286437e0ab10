"""Checks of what `fedhead.run` is given: kinds of objects, before any of them fails somewhere inside."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import Upload
from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.engine.rounds.callbacks import Callback
from fedhead.engine.rounds.rounds import Snapshot
from fedhead.loggers.base import Logger
from fedhead.samplers.base import Sampler


def refuse_kinds(
    federation: Any,
    model: Any,
    method: Any,
    stages: Any,
    uploads: Any,
    metrics: Any,
    callbacks: Any,
    loggers: Any,
    aggregator: Any,
    outliers: Any,
    sampler: Any,
    stragglers: Any,
    on_round: Any,
) -> None:
    """Refuse what is no federation, model, method or list of stages, before it fails somewhere inside."""
    if not isinstance(federation, Federation):
        raise BadInput(
            f"federation is {type(federation).__name__}: make one first, fedhead.Federation.from_arrays(x, y)"
        )
    if not isinstance(model, str | Sequence) and not callable(model):
        raise BadInput(f"model is {type(model).__name__}: give a name, fedhead.split(model, classifier='…'), or a list")
    lists = {"stages": (stages, "['ccvr']"), "uploads": (uploads, "['clip(1.0)', 'half']")}
    more = {
        "metrics": (metrics, "['f1']"),
        "callbacks": (callbacks, "['early_stopping']"),
        "loggers": (loggers, "['csv']"),
    }
    for what, (given, example) in (lists | more).items():
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise BadInput(f"{what} is {given!r}: give a list, such as {example}")
    if on_round is not None and not callable(on_round):
        raise BadInput(f"on_round is {type(on_round).__name__}: give a function of a snapshot")
    if stragglers is not None and not isinstance(stragglers, str | Stragglers):
        raise BadInput(f"stragglers is {type(stragglers).__name__}: give a text, such as 'drop(0.2)'")
    if outliers is not None and not isinstance(outliers, str | OutlierPolicy):
        raise BadInput(f"outliers is {type(outliers).__name__}: give a text, such as 'drop(norm=5)'")
    kinds: list[tuple[str, type, Sequence[Any]]] = [("method", Method, [method]), ("stage", Stage, stages)]
    kinds += [("callback", Callback, callbacks), ("logger", Logger, loggers)]
    kinds += [("upload", Upload, uploads), ("aggregator", Aggregator, [] if aggregator is None else [aggregator])]
    kinds += [("sampler", Sampler, [] if sampler is None else [sampler])]
    for what, kind, things in kinds:
        for thing in things:
            if not isinstance(thing, kind | type | str):
                raise BadInput(f"{what} is {type(thing).__name__}: give a name or a {what}, see `fedhead ls {what}s`")


def refuse_resumption(out: Any, resume: Any) -> None:
    """Refuse what names no run to go on with."""
    if out is not None and not isinstance(out, str | PathLike):
        raise BadInput(f"out is {type(out).__name__}: give the path of the run folder")
    if not isinstance(resume, Snapshot | bool | None):
        raise BadInput(
            f"resume is {type(resume).__name__}: with out, give True; without, the snapshot that an earlier run's "
            "on_round was given"
        )
    if out is not None and isinstance(resume, Snapshot):
        raise BadInput("resume: a run folder has its own checkpoint; give resume=True, or leave out= out")
    if out is None and resume is True:
        raise BadInput("resume: which run is to go on? Give its folder, out='runs/…'")
