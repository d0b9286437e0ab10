"""Calibration without a federated run: any model, calibrated by class statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from fedhead.calibration import statistics as class_statistics
from fedhead.calibration import statistics_check
from fedhead.calibration.collect import fingerprint
from fedhead.calibration.head import check_head
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.virtual_features import tukey
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights
from fedhead.models.split_model import SplitModel, load, weights
from fedhead.stages.ccvr import CCVR


def calibrate(
    model: SplitModel, statistics: Statistics | Iterable[Statistics], *, seed: int = 0, **settings: Any
) -> SplitModel:
    """Calibrate the classifier of a model by class statistics (CCVR); no data is needed.

    Args:
        model: The model.
        statistics: Class statistics of all sites, merged or one by one.
        seed: Seed of the virtual features.
        **settings: Parameters of `fedhead.CCVR`: samples, epochs, lr and so on.

    Returns:
        A copy of the model with a calibrated classifier.

    Raises:
        BadInput: If the statistics are invalid or belong to a different model.

    >>> import torch
    >>> from fedhead.calibration.collect import statistics_of
    >>> from fedhead.models import build
    >>> model = build("mlp", (4,), 2, hidden=[3])
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> calibrated = calibrate(model, statistics_of(model, x, y), samples=10, epochs=1)
    """
    if not isinstance(model, SplitModel):
        raise BadInput(f"model is {type(model).__name__}: wrap it first, fedhead.split(model, classifier='…')")
    merged = statistics if isinstance(statistics, Statistics) else class_statistics.merge(statistics)
    statistics_check.check(merged, "the statistics")
    stage = CCVR(**settings)
    check_head(model, stage.free, "calibrate")
    _refuse_misfit(merged, model.classes, model.features, fingerprint(weights(model)))
    w = weights(model)
    calibrated = copy.deepcopy(model)
    load(calibrated, w.replace(calibrated_head(stage, model, w.part("classifier"), merged, seed)))
    if stage.tukey == "both":
        calibrated.classifier.register_forward_pre_hook(_Transformed(stage.power))
    return calibrated


def calibrate_weights(
    w: Mapping[str, Tensor], classifier: str, statistics: Statistics, *, seed: int = 0, **settings: Any
) -> dict[str, Tensor]:
    """The same for named weights whose architecture is not at hand: `classifier` names a linear layer in them."""
    names = {word: f"{classifier}.{word}" for word in ("weight", "bias") if f"{classifier}.{word}" in w}
    if "weight" not in names or w[names["weight"]].dim() != 2:
        linear = [n.removesuffix(".weight") for n, t in w.items() if n.endswith(".weight") and t.dim() == 2]
        raise BadInput(f"no linear layer {classifier!r} in the weights; there is {', '.join(linear[-4:]) or 'none'}")
    others = sorted(n for n in w if n.startswith(classifier + ".") and n not in names.values())
    if others:
        raise BadInput(f"classifier {classifier!r} is no plain linear layer: it also holds {others[0]!r}")
    weight = w[names["weight"]]
    head = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in names, dtype=weight.dtype)
    statistics_check.check(statistics, "the statistics")
    _refuse_misfit(statistics, weight.shape[0], weight.shape[1], fingerprint(w, classifier))
    own = Weights({f"classifier.{word}": w[name] for word, name in names.items()})
    stage = CCVR(**settings)
    new = calibrated_head(stage, SplitModel(nn.Identity(), head), own, statistics, seed)
    return {**w, **{name: new[f"classifier.{word}"] for word, name in names.items()}}


def calibrated_head(stage: CCVR, model: SplitModel, head: Tree, statistics: Statistics, seed: int) -> Tree:
    """The head after CCVR's training, from raw statistics."""
    if stage.tukey == "real":
        raise BadInput("tukey=real needs statistics of transformed features, which only a run's stage collects")
    return stage.calibrate(model, head, statistics, seed)


def _refuse_misfit(s: Statistics, classes: int, features: int, model: str) -> None:
    if (s.classes, s.features) != (classes, features):
        raise BadInput(
            f"statistics of another model: they have {s.classes} classes and {s.features} features, "
            f"the model {classes} and {features}"
        )
    if s.extractor and s.extractor != model:
        raise BadInput("statistics of another model: its weights differ from those that gave the features")


class _Transformed:
    """Hands a classifier its features transformed; the weights keep their names."""

    def __init__(self, power: float):
        self.power = power

    def __call__(self, module: nn.Module, entering: tuple[Tensor]) -> tuple[Tensor]:
        return (tukey(entering[0], self.power),)
