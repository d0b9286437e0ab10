"""Computation of class statistics of a model's features from samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.calibration.statistics import Statistics, from_sums
from fedhead.calibration.sums import Kind, batch_sums
from fedhead.core.system.errors import BadInput, forward_errors, require_known
from fedhead.core.tree.digest import digest_text
from fedhead.core.tree.inputs import Inputs, map_inputs, tensors_of
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.models.split_model import SplitModel, weights

_KEPT = (torch.int64, torch.bool)  # tokens and masks keep their type


@torch.no_grad()
def statistics_of(
    model: SplitModel,
    x: Inputs | NDArray[Any],
    y: Tensor | NDArray[Any],
    *,
    transform: AnyTransform | None = None,
    kind: Kind = "full",
    min_class_count: int = 1,
    chunk: int = 512,
) -> Statistics:
    """Compute the class statistics of a model's features, as a client would send them.

    Samples are processed in chunks, so memory use does not grow with the data.

    Args:
        model: Model whose features are used.
        x: Samples, [N, ...], or several arrays by name.
        y: Labels, [N].
        transform: Maps stored samples to the model's inputs.
        kind: Kind of second moments: all covariances (`full`), their `diagonal`, one matrix for all classes
            (`pooled`), or none (`means`).
        min_class_count: Minimum samples per class; smaller classes are left out, as their sums reveal samples.
        chunk: Samples per forward pass.

    Returns:
        The sums per class.

    Raises:
        BadInput: If samples and labels differ in number, a label is no class of the model, or the model can't take the
            samples.

    >>> from fedhead.models import build
    >>> statistics_of(build("mlp", (4,), 2), torch.zeros(3, 4), torch.tensor([0, 0, 1])).count.tolist()
    [2.0, 1.0]
    """
    if not isinstance(model, SplitModel):
        raise BadInput(f"model is {type(model).__name__}: wrap it first, fedhead.split(model, classifier='…')")
    require_known("kind of statistics", kind, get_args(Kind))
    if chunk < 1 or min_class_count < 1:
        raise BadInput(f"chunk is {chunk} and min_class_count {min_class_count}: both must be at least 1")
    inputs: Inputs = map_inputs(torch.as_tensor, x)
    size = len(tensors_of(inputs)[0])
    if size != len(y) or not len(y):
        raise BadInput(f"{size} samples with {len(y)} labels: give as many labels as samples, at least one")
    given = torch.as_tensor(y)
    y = given.long()
    if y.dim() != 1 or not torch.equal(y.to(given.dtype), given):
        raise BadInput(f"labels of shape {tuple(y.shape)} and type {given.dtype}: give one class number per sample")
    if int(y.min()) < 0 or int(y.max()) >= model.classes:
        raise BadInput(f"labels span {int(y.min())} … {int(y.max())}, the model has classes 0 … {model.classes - 1}")
    large = torch.bincount(y, minlength=model.classes) >= min_class_count
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    training, total = model.training, None
    model.eval()
    for begin in range(0, size, chunk):
        part, labels = map_inputs(lambda t, at=begin: t[at : at + chunk], inputs), y[begin : begin + chunk]
        if transform is not None:
            part = transform(part)
        part = map_inputs(lambda t: (t.to(dtype) if t.dtype not in _KEPT else t).to(device), part)
        z, counted = _features(model, part), large[labels].to(device, torch.float64)
        sums = batch_sums(z, labels.to(device), counted, model.classes, kind)
        total = sums if total is None else total.map(Tensor.add_, sums)
    model.train(training)
    assert total is not None
    return from_sums(total, fingerprint(weights(model)), "" if transform is None else transform_fingerprint(transform))


def _features(model: SplitModel, x: Inputs) -> Tensor:
    shapes = " and ".join(str(tuple(t.shape[1:])) for t in tensors_of(x))
    with forward_errors(f"the model can't take inputs of shape {shapes}"):
        z: Tensor = model(x).z
    return z


def transform_fingerprint(transform: AnyTransform) -> str:
    """Hash the normalization of inputs, without augmentation, which statistics don't use."""
    return digest_text(repr(transform.replace(augment="none")))


def fingerprint(w: Mapping[str, Tensor], classifier: str = "classifier") -> str:
    """Hash a model's weights except its classifier's, independent of names and order."""
    digests = []
    for name, t in w.items():
        if t.is_floating_point() and name != classifier and not name.startswith(classifier + "."):
            body = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            digests.append(hashlib.blake2b(repr(tuple(t.shape)).encode() + body, digest_size=16).digest())
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=16).hexdigest()
