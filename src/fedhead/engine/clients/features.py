"""Features that are computed once: of a frozen extractor, for all that trains or computes the head alone.

They are kept in memory or in files. The name of a file is a digest of everything that decides the features: the
extractor's code, settings and weights, the transform, the samples and the precision. A change of any of these is
another file, so that kept features are never out of date.
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
BATCH = {"cuda": 2048, "cpu": 64}  # samples at once; halved where they do not fit in memory
Advance = Callable[[int], None]  # is told how many more samples are done


@dataclass(frozen=True)
class FeatureExtractor:
    """Computes the features of samples, or finds those that were computed before.

    Args:
        model: The model, on the device and in the type that it computes in.
        transform: Maps stored samples to model inputs.
        bf16: Whether the extractor computes in bfloat16; features are float32 all the same.
        folder: Where features are kept; None: only in memory.
        projected: Whether to return z, which the classifier takes, in place of h.
    """

    model: SplitModel
    transform: AnyTransform
    bf16: bool = False
    folder: Path | None = None
    projected: bool = False

    def __call__(self, samples: Samples, advance: Advance | None = None) -> Samples:
        """Return the samples with their features in place of their inputs, on the model's device.

        Args:
            samples: Samples as stored.
            advance: Is called with the number of samples that are done after each batch.

        Raises:
            BadInput: If the folder can't be written to.
        """
        if self.folder is None:
            return Samples(self._compute(samples.x, advance), samples.y)
        path = self.folder / f"{self.key(samples.x)}.safetensors"
        found = _read(path)
        if found is None:
            found = self._compute(samples.x, advance)
            _write(path, found)
        elif advance is not None:
            advance(len(samples.y))
        return Samples(found.to(self._like.device), samples.y)

    def key(self, x: Inputs) -> str:
        """Return a digest of everything that decides the features of these samples."""
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
        """A tensor of the device and type that features have."""
        return next(self.model.parameters())

    @torch.no_grad()
    def _compute(self, x: Inputs, advance: Advance | None) -> Tensor:
        device, size = self._like.device, len(tensors_of(x)[0])
        model = copy.deepcopy(self.model).eval()

        def compute(batch: int) -> Tensor:
            made: list[Tensor] = []
            for begin in range(0, max(size, 1), batch):
                part = map_inputs(lambda t, at=begin: t[at : at + batch].to(device), x)
                made.append(self._features(model, part))
                if advance is not None:
                    advance(len(made[-1]))
            return torch.cat(made)

        return retry_with_smaller_batches(compute, BATCH.get(device.type, BATCH["cpu"]), size, "features")[0]

    def _features(self, model: SplitModel, x: Inputs) -> Tensor:
        inputs = to_dtype(self.transform(x), self._like.dtype)  # type: ignore[arg-type]  # of the transform's kind
        inputs = map_inputs(channels_last, inputs)
        with torch.autocast(self._like.device.type, torch.bfloat16, enabled=self.bf16):
            h = model.extract(inputs)
            found: Tensor = model.projection(h) if self.projected else h
        return found.to(self._like.dtype)


def with_features(federation: Federation, models: Sequence[SplitModel], cache: str, bf16: bool) -> Federation:
    """Return a federation's samples with the features h of a frozen extractor in place of their inputs.

    Args:
        federation: The federation.
        models: The one model, on its device; it takes features from then on as it takes inputs.
        cache: "memory", or the folder where features are kept.
        bf16: Whether the extractor computes in bfloat16.

    Raises:
        BadInput: If training on kept features would not be training through the extractor.
    """
    if len(models) != 1:
        raise BadInput(f"cache_features: {len(models)} architectures have different features; give one model")
    check_kept(models[0], federation.transform, federation.train.x)
    extract = FeatureExtractor(models[0], federation.transform, bf16, None if cache == MEMORY else Path(cache))
    made = of_features(federation, extract)
    models[0].kept_width = shape_of(made.train.x)[0]
    return made


def of_features(federation: F, extract: FeatureExtractor, advance: Advance | None = None) -> F:
    """Return a federation of the same clients with features in place of inputs.

    Args:
        federation: The federation.
        extract: Computes features.
        advance: Is called with the number of samples that are done after each batch.
    """
    parts = {name: getattr(federation, name) for name in ("train", "test", "public")}
    found = {name: None if held is None else extract(held, advance) for name, held in parts.items()}
    return replace(federation, transform=Transform(), missing={}, **found)  # type: ignore[arg-type]  # one type each


def check_kept(model: SplitModel, transform: AnyTransform, x: Inputs) -> None:
    """Check that training on kept features is training through the extractor.

    Args:
        model: The model, on its device.
        transform: Maps stored samples to model inputs.
        x: A few stored samples.

    Raises:
        BadInput: If the extractor is trained, samples are augmented, or the extractor computes otherwise in training.
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
    """Return kept features; None where there are none, or the file is damaged."""
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
