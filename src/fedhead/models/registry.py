"""The models that fedhead knows by name, and how they are built: architecture, feature layer, head, initial weights."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import nn

from fedhead.core import errors, random
from fedhead.core.errors import BadInput
from fedhead.models.check import fix
from fedhead.models.heads import HEADS, ETFHead, NormalizedLinear, PrototypeHead
from fedhead.models.split_model import SplitModel

Shape = Sequence[int]  # of one input, without the batch axis


class Body(NamedTuple):
    """What an architecture brings: all but the classifier."""

    extractor: nn.Module
    width: int  # dimension of h, the extractor's output
    projection: nn.Module | None = None
    features: int | None = None  # dimension of z; None: that of h


class Entry(NamedTuple):
    """A registered architecture."""

    name: str
    description: str
    builder: Callable[..., Body]

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The architecture's own parameters."""
        return dict(list(inspect.signature(self.builder).parameters.items())[1:])


MODELS: dict[str, Entry] = {}


def register(name: str, description: str) -> Callable[[Callable[..., Body]], Callable[..., Body]]:
    """Make an architecture known by name: a function (input_shape, parameters with defaults) -> Body.

    Parameters are checked against their type hints before the function is called; integers must be positive.
    """

    def enter(builder: Callable[..., Body]) -> Callable[..., Body]:
        if name in MODELS:
            raise ValueError(f"model {name!r} is registered twice")
        MODELS[name] = Entry(name, description, builder)
        return builder

    return enter


def build(
    name: str,
    input_shape: Shape,
    classes: int,
    head: str = "linear",
    seed: int = 0,
    *,
    feature_layer: int | None = None,
    dim: int | None = None,
    scale: float = 1.0,
    projected: bool = True,
    **params: Any,
) -> SplitModel:
    """A registered model with its initial weights, which depend on the seed and the names alone.

    `feature_layer` ends the extractor in a Linear layer of that width, with a ReLU between it and the classifier, so
    that architectures of any width can share one classifier (FedClassAvg). `dim` is the ETF head's dimension (the
    number of classes unless told), `scale` the first temperature of an ETF or prototype head; `projected=False` leaves
    the ETF's projection layer out, as in FedETF's ablation.

    >>> model = build("mlp", (1, 8, 8), classes=10, hidden=(32,))
    >>> model.features, model.classes
    (32, 10)
    """
    entry = MODELS.get(name)
    if entry is None:
        raise errors.unknown("model", name, MODELS)
    if head not in HEADS:
        raise errors.unknown("head", head, HEADS)
    if classes < 2:
        raise BadInput(f"model {name!r} needs at least 2 classes, not {classes}")
    if feature_layer is not None and feature_layer < 1:
        raise BadInput(f"feature_layer of model {name!r} must be at least 1, not {feature_layer}")
    if head != "etf" and (dim is not None or not projected):
        odd = "dim" if dim is not None else "projected"
        raise BadInput(f"{odd} is a parameter of the etf head alone; model {name!r} has head {head!r}")
    if dim is not None and not projected:
        raise BadInput(f"dim={dim} needs the projection layer: without it the ETF has the extractor's dimension")
    _check_parameters(entry, params)
    with seeded(random.key(seed, "init")):
        body = entry.builder(tuple(input_shape), **params)
        if feature_layer is not None:
            extractor = nn.Sequential(body.extractor, nn.Linear(body.width, feature_layer))
            body = Body(extractor, feature_layer, nn.ReLU(), feature_layer)
    # the head has a key of its own: clients of different architectures start from one classifier
    with seeded(random.key(seed, "init", "head")):
        return fix(_attach(body, head, classes, random.key(seed, "etf"), dim, scale, projected))


def with_head(model: SplitModel, head: str, seed: int = 0, *, dim: int | None = None, scale: float = 1.0) -> SplitModel:
    """A copy of a model with a new head of another kind in place of its classifier.

    >>> with_head(build("mlp", (1, 8, 8), classes=10), "etf").fixed
    frozenset({'classifier.weight'})
    """
    if head not in HEADS:
        raise errors.unknown("head", head, HEADS)
    own = copy.deepcopy(model)
    plain = isinstance(own.projection, nn.Identity)
    body = Body(own.extractor if plain else nn.Sequential(own.extractor, own.projection), own.features)
    with seeded(random.key(seed, "init", "head")):
        return fix(_attach(body, head, own.classes, random.key(seed, "etf"), dim, scale))


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Draw initial weights from a key, on the CPU, and leave torch's global generator as it was."""
    with random.global_generator(key), torch.device("cpu"):
        yield


def _attach(
    body: Body, head: str, classes: int, key: int, dim: int | None, scale: float, projected: bool = True
) -> SplitModel:
    features = body.width if body.features is None else body.features
    if head == "etf" and not projected:
        return SplitModel(body.extractor, ETFHead(features, classes, key, scale), body.projection)
    if head == "etf":
        width = classes if dim is None else dim
        classifier = ETFHead(width, classes, key, scale)
        # the ETF's own projection (Eq. 5) takes the place of an architecture's; an activation in front of it stays
        layer = nn.Linear(body.width, width)
        before = body.projection if isinstance(body.projection, nn.ReLU) else None
        return SplitModel(body.extractor, classifier, layer if before is None else nn.Sequential(before, layer))
    if head == "prototype":
        return SplitModel(body.extractor, PrototypeHead(features, classes, scale), body.projection)
    if head == "normalized":
        return SplitModel(body.extractor, NormalizedLinear(features, classes), body.projection)
    return SplitModel(body.extractor, nn.Linear(features, classes), body.projection)


# -- input and parameter checks -------------------------------------------------------------------------------------
def image(name: str, shape: Shape, least: int) -> tuple[int, int, int]:
    """The channels, height and width of an image that a model can take, or an error that says what fits."""
    if len(shape) != 3:
        raise BadInput(f"model {name!r} takes images of (channels, height, width), not inputs of {tuple(shape)}")
    channels, height, width = (int(side) for side in shape)
    if min(height, width) < least:
        raise BadInput(
            f"model {name!r} can't take {height}x{width} images: it needs at least {least}x{least}; "
            f"for smaller ones use 'digitscnn', 'resnet20' or 'mlp'"
        )
    return channels, height, width


def flat(shape: Shape) -> int:
    """How many numbers an input has."""
    return math.prod(int(side) for side in shape)


def _check_parameters(entry: Entry, params: Mapping[str, Any]) -> None:
    known = entry.parameters()
    hints = get_type_hints(entry.builder)
    for name, value in params.items():
        if name not in known:
            raise (
                errors.unknown(f"parameter of model {entry.name!r}", name, known)
                if known
                else BadInput(f"model {entry.name!r} has no parameters, so {name!r} can't be set")
            )
        wanted = _mismatch(value, hints[name])
        if wanted:
            raise BadInput(f"parameter {name!r} of model {entry.name!r} must be {wanted}, not {value!r}")


def _mismatch(value: Any, hint: Any) -> str | None:
    """What the type hint asks for, in words, where the value is not of it."""
    if get_origin(hint) is Literal:
        return None if value in get_args(hint) else "one of " + ", ".join(map(repr, get_args(hint)))
    if hint is bool:
        return None if isinstance(value, bool) else "true or false"
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "a positive integer"
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return None if fits else "a number"
    if hint is str:
        return None if isinstance(value, str) else "a word"
    if hint == tuple[int, ...]:
        fits = isinstance(value, list | tuple) and all(_mismatch(item, int) is None for item in value)
        return None if fits else "a list of positive integers"
    return None  # other types are the architecture's own to check
