"""Model in named parts (extractor, optional projection, classifier), and its weights as named tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.training.batch import Output
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights, under
from fedhead.models import functional
from fedhead.models.origin import Origin


class SplitModel(nn.Module):
    """Classification model in three named parts: x → extractor → h → projection → z → classifier → logits.

    Args:
        extractor: Maps inputs to features h.
        classifier: Maps z to logits; must have `in_features` and `out_features`.
        projection: Maps h to z; the identity by default.

    Attributes:
        features: Dimension of z.
        classes: Number of classes.
        head: Name of the head in `fedhead.models.heads.HEADS`.
        fixed_by_head: Full names of the parameters that are trained only by phases that name them (such as the
            vectors of an ETF).
        may_call_dropout: Whether it may call `F.dropout`; determined at the start of a run.
        origin: The user's module that was split (`fedhead.split`).
        may_normalize_batches: Whether it may call `F.batch_norm`; determined at the start of a run.
        kept_width: Dimension of precomputed features h that are given instead of inputs; None: not precomputed.
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
        self.head = str(getattr(classifier, "kind", "linear"))
        fixed = cast(Iterable[str], getattr(classifier, "fixed", ()))
        self.fixed_by_head = frozenset(f"classifier.{name}" for name in fixed)
        self.may_call_dropout = False
        self.origin: Origin | None = None
        self.may_normalize_batches = True
        self.kept_width: int | None = None
        self.register_load_state_dict_post_hook(_ignore_batch_counters)  # type: ignore[no-untyped-call]  # torch's

    @property
    def frozen(self) -> frozenset[str]:
        """Full names of the parameters without gradients (`requires_grad_(False)`).

        BatchNorm's running statistics are buffers and are still updated, as in PyTorch.
        """
        return frozenset(name for name, p in self.named_parameters() if not p.requires_grad)

    @property
    def fixed(self) -> frozenset[str]:
        """Full names of all parameters that local training does not change: fixed by the head, or frozen."""
        return self.fixed_by_head | self.frozen

    def forward(self, x: Inputs) -> Output:
        """Compute the features, the projected features and the logits of a batch.

        Args:
            x: Inputs, as for `extract`.

        Returns:
            The outputs.
        """
        h = self.extract(x)
        z = self.projection(h)
        return Output(h, z, self.classifier(z))

    def extract(self, x: Inputs) -> Tensor:
        """Compute the features h of a batch.

        Args:
            x: Inputs, [B, ...]. Named tensors are passed as keyword arguments to the extractor's `forward`; if it has a
                single parameter of another name, as a dictionary. Precomputed features (`kept_width`) are returned
                unchanged.

        Returns:
            The features, [B, width].
        """
        if self.kept_width is not None and isinstance(x, Tensor) and x.shape[1:] == (self.kept_width,):
            return x
        h = self.extractor(**x) if isinstance(x, dict) and _takes_names(self.extractor, x) else self.extractor(x)
        return h if isinstance(h, Tensor) else _logits_of(h, self.extractor)


def _takes_names(module: nn.Module, names: Iterable[str]) -> bool:
    """Return whether named inputs are passed as keyword arguments, and not as one dictionary."""
    taken = inspect.signature(module.forward).parameters.values()
    plain = [p.name for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    several = len(plain) != 1 or any(p.kind == p.VAR_KEYWORD for p in taken)
    return several or plain[0] in names


def _logits_of(out: Any, module: nn.Module) -> Tensor:
    """Return the logits of an output object, such as that of a Hugging Face model."""
    logits = out.get("logits") if isinstance(out, dict) else getattr(out, "logits", None)
    if not isinstance(logits, Tensor):
        names = (type(module).__name__, type(out).__name__)
        raise BadInput(f"{names[0]} returns {names[1]}: return a tensor, or an object with .logits")
    return logits


def _ignore_batch_counters(module: nn.Module, keys: Any) -> None:
    """Ignore BatchNorm's batch counters in checkpoints, which fixed layers don't have."""
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if not key.endswith("num_batches_tracked")]


def freeze(models: Sequence[SplitModel], names: Iterable[str]) -> None:
    """Freeze parameters of models in place with `requires_grad_(False)`.

    Args:
        models: Models; a name may match only some of them.
        names: Parts (`extractor`), submodules (`extractor.layer1`), parameters (`classifier.bias`), or patterns of
            parameters' names (`extractor.*.bias`).

    Raises:
        BadInput: If a name matches no parameter, or all parameters are frozen.

    >>> model = SplitModel(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> freeze([model], ["extractor"])
    >>> sorted(model.frozen)
    ['extractor.bias', 'extractor.weight']
    """
    for pattern in names:
        matches = [
            p
            for model in models
            for name, p in model.named_parameters()
            if under(name, (pattern,)) or fnmatchcase(name, pattern)
        ]
        if not matches:
            known = dict.fromkeys(n for model in models for n, _ in model.named_parameters())
            raise unknown("name in freeze", pattern, [*dict.fromkeys(n.partition(".")[0] for n in known), *known])
        for parameter in matches:
            parameter.requires_grad_(False)
    for model in models:
        if all(name in model.fixed for name, _ in model.named_parameters()):
            raise BadInput("freeze: all parameters are frozen, nothing is left to train; leave one part out")


class Placeholder(nn.Identity):
    """Identity that replaces a part that was split from a user's module."""


def weights(model: nn.Module) -> Weights:
    """Copy the parameters and floating-point buffers of a model.

    Returns:
        Tensors keyed by their names in the model's state dict.
    """
    # without counters such as num_batches_tracked, which need no averaging
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    stats = {name: b.detach().clone() for name, b in model.named_buffers() if b.is_floating_point()}
    return Weights({**params, **stats}, buffers=stats)


def load(model: nn.Module, weights: Tree) -> None:
    """Copy weights into a module of the same architecture.

    Args:
        model: Module to write to.
        weights: Named parameters and floating-point buffers.

    Raises:
        BadInput: If names or shapes differ.
    """
    targets = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if b.is_floating_point()}}
    different = sorted(targets.keys() ^ weights.keys())
    if different:
        side = "the model lacks" if different[0] in weights else "the weights lack"
        raise BadInput(f"weights of a different architecture: {side} {different[0]!r} ({len(different)} names differ)")
    for name, target in targets.items():
        if target.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, the model needs {tuple(target.shape)}"
            raise BadInput(f"weights of a different architecture: {name!r} is {shapes}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(weights[name])


def classify(model: SplitModel, weights: Tree, z: Tensor) -> Tensor:
    """Compute the logits of features z with the classifier of a model.

    Args:
        model: Model with the classifier's architecture.
        weights: Weights of the whole model.
        z: Features, [B, d].
    """
    classifier = {name.removeprefix("classifier."): t for name, t in weights.part("classifier").items()}
    return cast(Tensor, functional.call(model.classifier, classifier, z))
