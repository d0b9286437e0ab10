"""Calibration without a federated run: a new classifier for any model, from class statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from fedhead.algorithm.stage import Stage
from fedhead.calibration import statistics as class_statistics
from fedhead.calibration import statistics_check
from fedhead.calibration.collect import fingerprint
from fedhead.calibration.head import check_head
from fedhead.calibration.membership import with_members
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.virtual_features import tukey
from fedhead.core.components.registry import instance
from fedhead.core.system.errors import BadInput, require
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.split_model import SplitModel, load, weights
from fedhead.stages import STAGES
from fedhead.stages.ccvr import CCVR
from fedhead.stages.closed_form import ClosedFormHead, as_classifier
from fedhead.stages.fedcof import FedCOF


def calibrate(
    model: SplitModel,
    statistics: Statistics | Iterable[Statistics],
    stage: str | type[Stage] | Stage = "ccvr",
    *,
    seed: int = 0,
) -> SplitModel:
    """Compute a classifier for a model from class statistics; no data is needed.

    Args:
        model: Model to calibrate.
        statistics: Class statistics of all sites, merged or as a list.
        stage: Stage that computes the classifier: `ccvr`, which trains the existing one on virtual features, or a
            closed-form head such as `"ridge(alpha=0.1)"`.
        seed: Seed of CCVR's virtual features.

    Returns:
        A copy of the model with the new classifier.

    Raises:
        BadInput: If the statistics are invalid, of another kind or of a different model.

    >>> import torch
    >>> from fedhead.calibration.collect import statistics_of
    >>> from fedhead.models import build
    >>> model = build("mlp", (4,), 2, hidden=[3])
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> calibrated = calibrate(model, statistics_of(model, x, y), "ccvr(samples=10, epochs=1)")
    """
    kind = type(model).__name__
    require(isinstance(model, SplitModel), f"model is {kind}: wrap it first, fedhead.split(model, classifier='…')")
    chosen, w = _stage(stage), weights(model)
    merged, parts = _merged(chosen, statistics)
    if isinstance(chosen, CCVR):
        check_head(model, chosen.any_head, "calibrate")
    _refuse_misfit(merged, model.classes, model.features, fingerprint(w))
    head = _new_classifier(chosen, model, w.part("classifier"), merged, parts, seed)
    if isinstance(chosen, ClosedFormHead):
        calibrated = copy.deepcopy(chosen.architecture(model))
        w = w.without("classifier")
    else:
        calibrated = copy.deepcopy(model)
    load(calibrated, w.replace(head))
    if isinstance(chosen, CCVR) and chosen.tukey == "both":
        calibrated.classifier.register_forward_pre_hook(_Transformed(chosen.power))
    return calibrated


def calibrate_weights(
    w: Mapping[str, Tensor],
    classifier: str,
    statistics: Statistics | Iterable[Statistics],
    stage: str | type[Stage] | Stage = "ccvr",
    *,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Calibrate a state dict without its architecture; `classifier` is the name of a linear layer in it."""
    names = {word: f"{classifier}.{word}" for word in ("weight", "bias") if f"{classifier}.{word}" in w}
    others = sorted(n for n in w if n.startswith(classifier + ".") and n not in names.values())
    if "weight" not in names or w[names["weight"]].dim() != 2 or others:
        linear = [n.removesuffix(".weight") for n, t in w.items() if n.endswith(".weight") and t.dim() == 2]
        detail = f" (it is no plain linear layer: it also holds {others[0]!r})" if others else ""
        names_of_layers = ", ".join(linear[-4:]) or "none"
        raise BadInput(f"no linear layer {classifier!r} in the weights{detail}; there is {names_of_layers}")
    weight = w[names["weight"]]
    head = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in names, dtype=weight.dtype)
    chosen = _stage(stage)
    merged, parts = _merged(chosen, statistics)
    _refuse_misfit(merged, weight.shape[0], weight.shape[1], fingerprint(w, classifier))
    current = Weights({f"classifier.{word}": w[name] for word, name in names.items()})
    new = _new_classifier(chosen, SplitModel(nn.Identity(), head), current, merged, parts, seed)
    require(
        not any(t.shape != current[name].shape if name in current else bool(t.any()) for name, t in new.items()),
        f"the head of {chosen.name} does not fit the linear layer {classifier!r}, which has "
        f"{' and '.join(names)}: give a run folder, or a layer with a bias",
    )
    return {**w, **{name: new[f"classifier.{word}"].to(weight.dtype) for word, name in names.items()}}


def _stage(stage: str | type[Stage] | Stage) -> CCVR | ClosedFormHead:
    result = instance(STAGES, stage, Stage)
    if not isinstance(result, CCVR | ClosedFormHead):
        raise BadInput(f"stage {result.name} computes no classifier from statistics: use ccvr, ridge, lda, qda or ncm")
    return result


def _merged(stage: Stage, statistics: Statistics | Iterable[Statistics]) -> tuple[Statistics, list[Statistics]]:
    """Return the validated statistics of all sites, merged, and those of each site if the stage needs them."""
    parts: list[Statistics] = []
    if isinstance(stage, FedCOF):
        if isinstance(statistics, Statistics):
            raise BadInput("fedcof needs the statistics of each site, not their sum: give a list")
        statistics = parts = list(statistics)
        single = all(len(part.members) <= 1 for part in parts)
        require(single, "fedcof needs the statistics of each site: one is the sum of several, give its parts")
    merged = statistics if isinstance(statistics, Statistics) else class_statistics.merge(map(with_members, statistics))
    return statistics_check.check(merged, "the statistics"), parts


def _new_classifier(
    stage: CCVR | ClosedFormHead,
    model: SplitModel,
    head: Tree,
    merged: Statistics,
    parts: list[Statistics],
    seed: int,
) -> Tree:
    """Return the new classifier weights by full name."""
    if isinstance(stage, CCVR):
        require(stage.tukey != "real", "tukey=real needs statistics that only a run's stage collects: use both")
        return stage.calibrate(model, head, merged, seed)
    weights_of_head = stage.fit_clients(parts) if isinstance(stage, FedCOF) else stage.fit(merged)
    return as_classifier(weights_of_head)


def _refuse_misfit(s: Statistics, classes: int, features: int, model: str) -> None:
    if (s.classes, s.features) != (classes, features):
        why = f"they have {s.classes} classes and {s.features} features, the model {classes} and {features}"
    elif s.extractor and s.extractor != model:
        why = "its weights differ from those that gave the features"
    else:
        return
    raise BadInput(f"statistics of another model: {why}")


class _Transformed:
    """Forward pre-hook that transforms a classifier's features without renaming its weights."""

    def __init__(self, power: float):
        self.power = power

    def __call__(self, module: nn.Module, entering: tuple[Tensor]) -> tuple[Tensor]:
        return (tukey(entering[0], self.power),)
