"""A model in named parts: extractor, optional projection, classifier; and its weights as named tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedhead.core.batch import Output
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights
from fedhead.models import functional


class SplitModel(nn.Module):
    """A classification model in three named parts, called as x → extractor → h → projection → z → classifier → logits.

    `features` is the dimension of z, `classes` that of the logits, `head` the kind of the classifier. `fixed` holds
    the full names of the parameters that local training leaves alone unless a phase names them (an ETF's vectors, a
    backbone that the user froze).
    """

    extractor: nn.Module
    projection: nn.Module
    classifier: nn.Module

    def __init__(self, extractor: nn.Module, classifier: nn.Module, projection: nn.Module | None = None):
        super().__init__()
        self.extractor = extractor
        self.projection = nn.Identity() if projection is None else projection
        self.classifier = classifier
        self.features = int(cast(int, classifier.in_features))
        self.classes = int(cast(int, classifier.out_features))
        self.head = str(getattr(classifier, "kind", "linear"))  # its name in `fedhead.models.heads.HEADS`
        held = {f"classifier.{name}" for name in cast(Iterable[str], getattr(classifier, "fixed", ()))}
        frozen = {name for name, p in self.named_parameters() if not p.requires_grad}
        self.fixed = frozenset(held | frozen)
        self.register_load_state_dict_post_hook(_forgive_counters)  # type: ignore[no-untyped-call]  # torch's

    def forward(self, x: Tensor) -> Output:
        """The features, the projected features and the logits of a batch."""
        h = self.extractor(x)
        z = self.projection(h)
        return Output(h, z, self.classifier(z))


def _forgive_counters(module: nn.Module, keys: Any) -> None:
    """Let `load_state_dict` take checkpoints with BatchNorm's counters: the layers here have none."""
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if not key.endswith("num_batches_tracked")]


class Placeholder(nn.Identity):
    """The place of a part that was taken out of a user's module: it hands its input on."""


def weights(model: nn.Module) -> Weights:
    """A copy of a model's parameters and running statistics, by name."""
    # num_batches_tracked and other counters are left out: a mean of models has no use for them
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    stats = {name: b.detach().clone() for name, b in model.named_buffers() if b.is_floating_point()}
    return Weights({**params, **stats}, buffers=stats)


def load(model: nn.Module, weights: Tree) -> None:
    """Write weights back into a module of the same architecture."""
    places = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if b.is_floating_point()}}
    odd = sorted(places.keys() ^ weights.keys())
    if odd:
        side = "the model lacks" if odd[0] in weights else "the weights lack"
        raise BadInput(f"weights of another architecture: {side} {odd[0]!r} ({len(odd)} names differ)")
    for name, place in places.items():
        if place.shape != weights[name].shape:
            raise BadInput(
                f"weights of another architecture: {name!r} is {tuple(weights[name].shape)}, "
                f"the model wants {tuple(place.shape)}"
            )
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(weights[name])


def classify(model: SplitModel, weights: Tree, z: Tensor) -> Tensor:
    """The logits that a model's classifier gives to features z, with the weights of the whole model."""
    own = {name.removeprefix("classifier."): t for name, t in weights.part("classifier").items()}
    return cast(Tensor, functional.call(model.classifier, own, z))
