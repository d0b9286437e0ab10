"""Feature cache of a frozen extractor, for training or computing the head alone.

Features are cached in memory or in files. The file name is a digest of everything that affects the features: code,
configuration and weights of the extractor, the transform, the samples and the precision. A change of any of these
gives another file, so cached features are never stale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.training import random
from fedhead.core.tree.digest import digest_of, digest_text
from fedhead.core.tree.inputs import Inputs, channels_last, map_inputs, shape_of, tensors_of, to_dtype
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree, save_tree
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.arrays import Samples
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.executors.stack.map_clients import retry_with_smaller_batches
from fedhead.models.dropout import KeyedDropout, dropout_key
from fedhead.models.module_digest import module_digest
from fedhead.models.split_model import SplitModel

F = TypeVar("F", bound=Federation)
MEMORY = "memory"
BATCH = {"cuda": 2048, "cpu": 64}  # batch size; halved on out-of-memory errors
Advance = Callable[[int], None]  # progress callback with the number of newly processed samples


@dataclass(frozen=True)
class FeatureExtractor:
    """Callable that computes the features of samples, with an optional file cache.

    Args:
        model: Model, on the device and in the dtype to compute with.
        transform: Transform from stored samples to model inputs.
        bf16: Whether the extractor computes in bfloat16; features keep the model's dtype.
        folder: Cache folder; None: no files.
        projected: Whether to return projected features z (the classifier's input) instead of h.
    """

    model: SplitModel
    transform: AnyTransform
    bf16: bool = False
    folder: Path | None = None
    projected: bool = False

    def __call__(self, samples: Samples, advance: Advance | None = None) -> Samples:
        """Return the samples with features instead of inputs, on the model's device.

        Args:
            samples: Stored samples.
            advance: Progress callback, called after each batch with its number of samples.

        Raises:
            BadInput: If the folder can't be written to.
        """
        if self.folder is None:
            return Samples(self._compute(samples.x, advance), samples.y)
        path = self.folder / f"{self.key(samples.x)}.safetensors"
        features = _read(path)
        if features is None:
            features = self._compute(samples.x, advance)
            _write(path, features)
        elif advance is not None:
            advance(len(samples.y))
        return Samples(features.to(self._like.device), samples.y)

    def key(self, x: Inputs) -> str:
        """Return a digest of everything that affects the features of these samples."""
        parts = [self.model.extractor, *([self.model.projection] if self.projected else [])]
        facts = [
            *(module_digest(part) for part in parts),
            repr(self.transform.replace(augment="none")),
            digest_of(x if isinstance(x, dict) else {"": x}, 16),
            f"{self._like.dtype} {self._like.device.type} {self.bf16}",
        ]
        return digest_text("\n".join(facts), 16)

    @property
    def _like(self) -> Tensor:
        """Tensor with the device and dtype of features."""
        return next(self.model.parameters())

    @torch.no_grad()
    def _compute(self, x: Inputs, advance: Advance | None) -> Tensor:
        device, size = self._like.device, len(tensors_of(x)[0])
        model = copy.deepcopy(self.model).eval()

        def compute(batch: int) -> Tensor:
            batches: list[Tensor] = []
            for begin in range(0, max(size, 1), batch):
                part = map_inputs(lambda t, at=begin: t[at : at + batch].to(device), x)
                batches.append(self._features(model, part))
                if advance is not None:
                    advance(len(batches[-1]))
            return torch.cat(batches)

        return retry_with_smaller_batches(compute, BATCH.get(device.type, BATCH["cpu"]), size, "features")[0]

    def _features(self, model: SplitModel, x: Inputs) -> Tensor:
        inputs = to_dtype(self.transform(x), self._like.dtype)  # type: ignore[arg-type]  # of the transform's kind
        inputs = map_inputs(channels_last, inputs)
        with torch.autocast(self._like.device.type, torch.bfloat16, enabled=self.bf16):
            h = model.extract(inputs)
            features: Tensor = model.projection(h) if self.projected else h
        return features.to(self._like.dtype)


def with_features(federation: Federation, models: Sequence[SplitModel], cache: str, bf16: bool) -> Federation:
    """Return a federation with the features h of a frozen extractor instead of inputs.

    Args:
        federation: Federation.
        models: A single model, on its device. Afterwards it accepts features as well as inputs.
        cache: "memory", or a cache folder.
        bf16: Whether the extractor computes in bfloat16.

    Raises:
        BadInput: If training on cached features would differ from training through the extractor.
    """
    if len(models) != 1:
        raise BadInput(f"cache_features: {len(models)} architectures have different features; give one model")
    check_kept(models[0], federation.transform, federation.train.x)
    extract = FeatureExtractor(models[0], federation.transform, bf16, None if cache == MEMORY else Path(cache))
    converted = of_features(federation, extract)
    models[0].kept_width = shape_of(converted.train.x)[0]
    return converted


def of_features(federation: F, extract: FeatureExtractor, advance: Advance | None = None) -> F:
    """Return a federation of the same clients with features instead of inputs.

    Args:
        federation: Federation.
        extract: Feature extractor.
        advance: Progress callback, called after each batch with its number of samples.
    """
    parts = {name: getattr(federation, name) for name in ("train", "test", "public")}
    features = {name: None if samples is None else extract(samples, advance) for name, samples in parts.items()}
    return replace(federation, transform=Transform(), missing={}, **features)  # type: ignore[arg-type]  # one type each


def check_kept(model: SplitModel, transform: AnyTransform, x: Inputs) -> None:
    """Check that training on cached features equals training through the extractor.

    Args:
        model: Model, on its device.
        transform: Transform from stored samples to model inputs.
        x: A few stored samples.

    Raises:
        BadInput: If the extractor is trained, samples are augmented, or features differ in training mode.
    """
    if any(parameter.requires_grad for parameter in model.extractor.parameters()):
        raise BadInput("cache_features: the extractor is trained, so its features change; set freeze=[extractor]")
    if transform.augment:
        raise BadInput("cache_features: augmented samples have other features in every epoch; set augment=none")
    like = next(model.parameters())
    inputs = to_dtype(transform(map_inputs(lambda t: t[:2].to(like.device), x)), like.dtype)
    trial = copy.deepcopy(model)
    key = torch.tensor(random.key("kept features"), device=like.device)
    with torch.no_grad():
        h = trial.eval().extract(inputs)
        with dropout_key(key), KeyedDropout():
            in_training = trial.train().extract(inputs)
    if not torch.equal(h, in_training):
        raise BadInput(
            "cache_features: the extractor computes other features in training, by BatchNorm of the batch or by "
            "dropout; take a model without them, or one whose BatchNorm is fixed, as efficientnet_lite0"
        )
    if isinstance(inputs, Tensor) and inputs.shape[1:] == h.shape[1:]:
        raise BadInput(f"cache_features: inputs and features both have {h.shape[1]} numbers, and can't be told apart")


def _read(path: Path) -> Tensor | None:
    """Return cached features; None if the file is missing or damaged."""
    try:
        return load_tree(path)[0]["features"] if path.is_file() else None
    except BadInput as error:
        warn_once(f"{error}: its features are computed again")
        return None


def _write(path: Path, features: Tensor) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tree(path, Tree(features=features))
    except OSError as error:
        raise BadInput(f"cache_features: {path.parent} can't be written to: {error}") from error
