"""Calibration without a federated run: statistics a site, files of them, and any model calibrated by them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhead.calibration import statistics as class_statistics
from fedhead.calibration.head import refuse_head, tukey
from fedhead.calibration.statistics import Statistics
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights
from fedhead.core.treefile import load_tree, save_tree
from fedhead.data.augment import Transform
from fedhead.models.split_model import SplitModel, load, weights
from fedhead.stages.ccvr import CCVR

_KIND = "class statistics"
_WHOLE, _LOW_RANK = {"count", "sum", "outer"}, {"count", "sum", "square", "factor"}  # what a file of them holds


# -- a site's half ------------------------------------------------------------------------------------
@torch.no_grad()
def statistics_of(
    model: SplitModel,
    x: Tensor | NDArray[Any],
    y: Tensor | NDArray[Any],
    *,
    transform: Transform | None = None,
    diagonal: bool = False,
    chunk: int = 512,
) -> Statistics:
    """The class statistics of a model's features on samples x, y, as a site would send them.

    One pass in chunks: memory does not grow with the data. `transform` brings stored samples to the model's inputs.
    """
    if len(x) != len(y) or not len(y):
        raise BadInput(f"{len(x)} samples with {len(y)} labels: give as many labels as samples, at least one")
    x, y = torch.as_tensor(x), torch.as_tensor(y).long()
    if int(y.min()) < 0 or int(y.max()) >= model.classes:
        raise BadInput(f"labels span {int(y.min())} … {int(y.max())}, the model has classes 0 … {model.classes - 1}")
    device = next(model.parameters()).device
    training, total = model.training, None
    model.eval()
    for part, labels in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        inputs = (part if transform is None else transform(part)).to(device, next(model.parameters()).dtype)
        z = model.projection(model.extractor(inputs))
        found = class_statistics.class_sums(z, labels.to(device), torch.ones(len(labels)), model.classes, diagonal)
        if total is None:
            total = list(found)
        else:
            for mine, more in zip(total, found, strict=True):
                mine.add_(more)
    model.train(training)
    assert total is not None
    count, sums, outer = total
    return Statistics(count, sums, outer if diagonal else class_statistics.pack(outer), fingerprint(weights(model)))


def fingerprint(w: Mapping[str, Tensor], classifier: str = "classifier") -> str:
    """A fingerprint of all of a model but its classifier, whatever its tensors are called."""
    each = []
    for name, t in w.items():
        if t.is_floating_point() and name != classifier and not name.startswith(classifier + "."):
            body = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            each.append(hashlib.blake2b(repr(tuple(t.shape)).encode() + body, digest_size=16).digest())
    return hashlib.blake2b(b"".join(sorted(each)), digest_size=16).hexdigest()


# -- files --------------------------------------------------------------------------------------------
def save_statistics(path: str | Path, statistics: Statistics, rank: int | None = None) -> int:
    """Write statistics to a safetensors file, whole or not at all, and return the bytes of its sums.

    With `rank` covariances are written as that many leading directions each, their diagonals exactly.
    """
    class_statistics.check(statistics, "the statistics")
    tree = statistics.tree() if rank is None else class_statistics.compressed(statistics, rank)
    save_tree(path, tree, {"holds": _KIND, "extractor": statistics.extractor})
    return tree.nbytes


def load_statistics(path: str | Path) -> Statistics:
    """Read statistics; refuses files that are corrupt, and numbers that no features could have given.

    Those of a low rank come back with whole covariances, as far as they were written.
    """
    tree, metadata = load_tree(path)
    if metadata.get("holds") != _KIND or set(tree) not in (_WHOLE, _LOW_RANK):
        raise BadInput(f"{path} holds no class statistics: make it with fedhead statistics")
    _refuse_shapes(tree, str(path))
    statistics = replace(class_statistics.expand(tree), extractor=str(metadata.get("extractor", "")))
    return class_statistics.check(statistics, str(path))


def _refuse_shapes(tree: Tree, source: str) -> None:
    c, d = len(tree["count"]), tree["sum"].shape[-1]
    fitting: dict[str, set[tuple[int, ...]]] = {
        "count": {(c,)},
        "sum": {(c, d)},
        "outer": {(c, d), (c, d * (d + 1) // 2)},
        "square": {(c, d)},
        "factor": {(c, rank, d) for rank in range(d + 1)},
    }
    if any(tuple(t.shape) not in fitting[name] or t.dtype != torch.float64 for name, t in tree.items()):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tree.items())
        raise BadInput(f"{source}: the sums don't fit each other ({shapes}); make it anew with fedhead statistics")


def merge_files(paths: Sequence[str | Path]) -> Statistics:
    """The statistics of all sites together; one file is held beside the total at a time."""

    def read() -> Iterator[Statistics]:
        first: tuple[int, int, str, str] | None = None
        for path in paths:
            part = load_statistics(path)
            form = (part.classes, part.features, part.kind, part.extractor)
            first = first or form
            if form != first:
                raise BadInput(
                    f"{path} is of another model than {paths[0]} ({form[0]} classes, {form[1]} features, {form[2]}; "
                    f"there {first[0]}, {first[1]}, {first[2]}, or other weights): use one model for all"
                )
            yield part
            del part  # before the next file is read

    return class_statistics.merge(read())


# -- the server's half --------------------------------------------------------------------------------
def calibrate(
    model: SplitModel, statistics: Statistics | Iterable[Statistics], *, seed: int = 0, **settings: Any
) -> SplitModel:
    """A copy of a model with its classifier calibrated by class statistics (CCVR), which no data is needed for.

    `statistics` are those of all sites, merged or one by one. `settings` are CCVR's: samples, epochs, lr and so on.

    >>> from fedhead.models import build
    >>> model = build("mlp", (4,), 2, hidden=[3])
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
    >>> calibrated = calibrate(model, statistics_of(model, x, y), samples=10, epochs=1)
    """
    if not isinstance(model, SplitModel):
        raise BadInput(f"model is {type(model).__name__}: wrap it first, fedhead.split(model, classifier='…')")
    merged = statistics if isinstance(statistics, Statistics) else class_statistics.merge(statistics)
    class_statistics.check(merged, "the statistics")
    stage = CCVR(**settings)
    refuse_head(model, stage.free, "calibrate")
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
    class_statistics.check(statistics, "the statistics")
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
