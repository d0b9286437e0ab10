"""The Python front door: arrays and a model in, a finished run out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fedhead.algorithm.base import Method, Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Upload
from fedhead.core.errors import BadInput, unknown
from fedhead.core.optimizers import SGD, Adam, Optimizer
from fedhead.data.federation import Federation
from fedhead.engine.classification_metrics import METRICS, Metric
from fedhead.engine.rounds import Result
from fedhead.engine.simulation import simulate
from fedhead.experiment import build
from fedhead.experiment.recipe import Recipe
from fedhead.methods import METHODS
from fedhead.models.build_many import build_many
from fedhead.models.check import require
from fedhead.models.split_model import SplitModel
from fedhead.stages import STAGES

OPTIMIZERS = ("sgd", "adam")


def run(
    federation: Federation,
    model: SplitModel | str | Sequence[SplitModel | str],
    method: Method | str = "fedavg",
    *,
    rounds: int = 10,
    local_epochs: int = 1,
    batch_size: int = 64,
    lr: float = 0.01,
    optimizer: str | Optimizer = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    drop_last: bool = False,
    persistent_optimizer: bool = False,
    stages: Sequence[Stage | str] = (),
    uploads: Sequence[Upload | str] = (),
    metrics: Sequence[str | Metric] = (),
    seed: int = 0,
    **options: Any,
) -> Result:
    """Train a federated classifier.

    `model` is a `SplitModel` (see `fedhead.split`), the name of an architecture, or a list of n such for
    clients of different architectures: client i has model i mod n, or the one that `assign` gives it.
    Methods, stages, models and metrics are named as in recipes: a built-in name, package.module:Name or file.py:Name.
    `metrics` of the global model are recorded in every evaluated round, besides the accuracy.
    `options` go to `fedhead.engine.simulation.simulate`: participation, executor, device, precision, evaluate_every,
    last_rounds, on_round, assign and the rest.
    """
    _refuse_kinds(federation, model, method, stages, uploads)
    Recipe(  # whose ranges hold here too
        rounds=rounds,
        local_epochs=local_epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        lr_decay=lr_decay,
        seed=seed,
        **{name: options[name] for name in ("participation", "evaluate_every", "last_rounds") if name in options},
    )
    chosen = METHODS.find(method)() if isinstance(method, str) else method
    models = _models(federation, model, chosen.head, seed, options.get("assign"))
    rule = optimizer if isinstance(optimizer, SGD | Adam) else make_optimizer(optimizer, lr, momentum, weight_decay)
    local = LocalTraining(local_epochs, batch_size, rule, lr_decay, drop_last, persistent_optimizer)
    steps = [STAGES.find(s)() if isinstance(s, str) else s for s in stages]
    chain = [build.upload(u) if isinstance(u, str) else u for u in uploads]
    measured = {m if isinstance(m, str) else m.__name__: METRICS.find(m) if isinstance(m, str) else m for m in metrics}
    return simulate(
        federation,
        models,
        chosen,
        rounds=rounds,
        local=local,
        stages=steps,
        uploads=chain,
        metrics=measured,
        seed=seed,
        **options,
    )


def _refuse_kinds(federation: Any, model: Any, method: Any, stages: Any, uploads: Any) -> None:
    """Refuse what is no federation, model, method or list of stages, before it fails somewhere inside."""
    if not isinstance(federation, Federation):
        raise BadInput(
            f"federation is {type(federation).__name__}: make one first, fedhead.Federation.from_arrays(x, y)"
        )
    if not isinstance(model, nn.Module | str | Sequence):
        raise BadInput(f"model is {type(model).__name__}: give a name, fedhead.split(model, classifier='…'), or a list")
    for what, given, example in (("stages", stages, "['ccvr']"), ("uploads", uploads, "['clip(1.0)', 'half']")):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise BadInput(f"{what} is {given!r}: give a list, such as {example}")
    for what, kind, things in (("method", Method, [method]), ("stage", Stage, stages), ("upload", Upload, uploads)):
        for thing in things:
            if isinstance(thing, type) and issubclass(thing, kind):
                raise BadInput(f"{what} is the class {thing.__name__}: give one of it, {thing.__name__}()")
            if not isinstance(thing, kind | str):
                raise BadInput(f"{what} is {type(thing).__name__}: give a name or a {what}, see `fedhead ls {what}s`")


def make_optimizer(name: str, lr: float, momentum: float, weight_decay: float) -> Optimizer:
    """The optimizer of a name; Adam's first coefficient is the momentum where one is given."""
    if name == "sgd":
        return SGD(lr, momentum, weight_decay)
    if name == "adam":
        return Adam(lr, (momentum or 0.9, 0.999), weight_decay=weight_decay)
    raise unknown("optimizer", name, OPTIMIZERS)


def _models(
    federation: Federation,
    model: SplitModel | str | Sequence[SplitModel | str],
    head: str | None,
    seed: int,
    assign: Sequence[int] | None,
) -> list[SplitModel]:
    given: list[Any] = [model] if isinstance(model, nn.Module | str) else list(model)
    if not given:
        raise BadInput("model is an empty list: give at least one")
    names = [(one, {} if head is None else {"head": head}) for one in given if isinstance(one, str)]
    built = iter(build_many(names, federation.input_shape, federation.classes, seed) if names else [])
    models = []
    for number, one in enumerate(given):
        if isinstance(one, str):
            models.append(next(built))
            continue
        users = [number] if assign is None else [k for k, own in enumerate(assign) if own == number]
        which = "the model" if len(given) == 1 else f"client {users[0]}: its model" if users else f"model {number}"
        if not isinstance(one, SplitModel):
            raise BadInput(f"{which} is {type(one).__name__}: wrap it first, fedhead.split(model, classifier='…')")
        require(one, federation.input_shape, federation.classes, name=which)
        models.append(one)
    return models
