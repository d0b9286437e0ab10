"""The registry of models, and how they are built: architecture, feature layer, head, initial weights."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import nn

from fedhead.core import random
from fedhead.core.errors import BadInput
from fedhead.core.parameters import check, check_all, parameters
from fedhead.core.ranges import Above, AtLeast, Below
from fedhead.core.registry import Registry
from fedhead.models.check import fix
from fedhead.models.heads import HEADS, ETFHead, make_head
from fedhead.models.split_model import SplitModel

Shape = Sequence[int]  # of one input, without the batch axis
Width = Annotated[int, AtLeast(1)]  # a number of channels, units or blocks
DropRate = Annotated[float, AtLeast(0), Below(1)]  # dropout's probability
RUN_DECIDES = ("name", "input_shape", "classes", "seed")  # of what `build` takes


class Body(NamedTuple):
    """The parts of an architecture except its classifier."""

    extractor: nn.Module
    width: int  # dimension of h, the extractor's output
    projection: nn.Module | None = None
    features: int | None = None  # dimension of z; None: that of h


class Entry(NamedTuple):
    """An architecture by name."""

    name: str
    description: str
    builder: Callable[..., Body | SplitModel]

    def parameters(self) -> dict[str, Any]:
        """Everything that can be set of the model by name, with its type and ranges: the head's, and its own."""
        _, *own = parameters(self.builder).items()  # the first is the input shape
        common = {word: hint for word, hint in parameters(build).items() if word not in RUN_DECIDES}
        return common | {word: hint for word, hint in own if word != "classes"}

    def make(self, shape: Shape, classes: int, params: Mapping[str, Any]) -> Body | SplitModel:
        """Call the builder."""
        more = {"classes": classes} if "classes" in inspect.signature(self.builder).parameters else {}
        made = self.builder(tuple(shape), **more, **params)
        if isinstance(made, Body | SplitModel):
            return made
        raise BadInput(
            f"model {self.name!r} made {type(made).__name__}: return fedhead.Body(extractor, width), "
            "or fedhead.split(module, classifier='…')"
        )


B = TypeVar("B", bound=Callable[..., Any])
MODELS = Registry[Entry]("model", "fedhead.models", lambda found, name: _checked(found, name), home=["fedhead.models"])


def register(name: str, description: str = "") -> Callable[[B], B]:
    """Register an architecture under a name: a function (input_shape, parameters with defaults).

    It returns a `Body`, to which any head is attached, or a whole `SplitModel`; one that takes `classes` is told their
    number. Parameters are checked against their type hints and ranges before the function is called.

    Args:
        name: The name in recipes.
        description: One line for `fedhead ls models`; without it the docstring's first.
    """

    def enter(builder: B) -> B:
        if description:
            vars(builder)["description"] = description
        return MODELS.register(name, builder)

    return enter


def _checked(found: Any, name: str) -> Entry:
    if isinstance(found, type) or not callable(found):
        kind = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        raise BadInput(f"{name} is {kind}, no model: name a function (input_shape) that returns a fedhead.Body")
    taken = list(inspect.signature(found).parameters.values())
    needed = [p.name for p in taken[1:] if p.default is p.empty and p.name != "classes" and p.kind != p.VAR_KEYWORD]
    if not taken or needed:
        shown = ", ".join(p.name for p in taken)
        fix = f"give {needed[0]!r} a default value" if needed else "it needs one argument"
        raise BadInput(f"{name} takes ({shown}), a model is called with (input_shape): {fix}")
    description = getattr(found, "description", "") or (found.__doc__ or "").strip().partition("\n")[0]
    return Entry(name, description, found)


def build(
    name: str | Entry,
    input_shape: Shape,
    classes: Annotated[int, AtLeast(2)],
    head: str | None = None,
    seed: int = 0,
    *,
    feature_layer: Width | None = None,
    dim: Width | None = None,
    scale: Annotated[float, Above(0)] = 1.0,
    projected: bool = True,
    **params: Any,
) -> SplitModel:
    """Build a model by name.

    The initial weights depend only on the seed and the names.

    Args:
        name: Name of the architecture, see `fedhead ls models`.
        input_shape: Shape of one input, without the batch axis.
        classes: Number of classes.
        head: Name of the classifier's kind, see `fedhead ls heads`; linear unless the architecture brings its own.
        seed: Seed of the initial weights.
        feature_layer: Width of a Linear layer at the end of the extractor, with a ReLU between it and the classifier,
            so that architectures of any width can share one classifier (FedClassAvg).
        dim: Dimension of an ETF head; by default the number of classes.
        scale: Initial temperature of an ETF or prototype head.
        projected: Whether an ETF head has a projection layer; False as in FedETF's ablation.
        **params: Parameters of the architecture.

    Raises:
        BadInput: If a name or parameter is unknown, or the parameters do not fit the architecture.

    >>> model = build("mlp", (1, 8, 8), classes=10, hidden=(32,))
    >>> model.features, model.classes
    (32, 10)
    """
    entry = MODELS.find(name) if isinstance(name, str) else name
    name = entry.name
    if head is not None:
        HEADS.find(head)
    check(f"model {name}: classes", classes, parameters(build)["classes"])
    told = {"feature_layer": feature_layer, "dim": dim, "scale": scale, "projected": projected, **params}
    told = check_all(told, entry.parameters(), f"model {name}", f"model {name}: ")
    params = {word: told[word] for word in params}
    if head != "etf" and (dim is not None or not projected):
        odd = "dim" if dim is not None else "projected"
        raise BadInput(f"{odd} is a parameter of the etf head alone; model {name!r} has head {head or 'linear'!r}")
    if dim is not None and not projected:
        raise BadInput(f"dim={dim} needs the projection layer: without it the ETF has the extractor's dimension")
    with seeded(random.key(seed, "init")):
        made = entry.make(input_shape, classes, params)
        if isinstance(made, SplitModel):
            if head in (None, made.head) and feature_layer is None:
                return _whole(fix(made), classes, name)
            head = head or made.head
        body = _body(made) if isinstance(made, SplitModel) else made
        if feature_layer is not None:
            extractor = nn.Sequential(body.extractor, nn.Linear(body.width, feature_layer))
            body = Body(extractor, feature_layer, nn.ReLU(), feature_layer)
    # the head has its own key: clients of different architectures start from the same classifier
    with seeded(random.key(seed, "init", "head")):
        return fix(_attach(body, head or "linear", classes, random.key(seed, "etf"), dim, scale, projected))


def with_head(model: SplitModel, head: str, seed: int = 0, *, dim: int | None = None, scale: float = 1.0) -> SplitModel:
    """Return a copy of a model with a new head instead of its classifier.

    Args:
        model: The model.
        head: Name of the new classifier's kind, see `fedhead ls heads`.
        seed: Seed of its initial weights.
        dim: Dimension of an ETF head.
        scale: Initial temperature of an ETF or prototype head.

    Raises:
        BadInput: If the head is unknown.

    >>> with_head(build("mlp", (1, 8, 8), classes=10), "etf").fixed
    frozenset({'classifier.weight'})
    """
    HEADS.find(head)
    own = copy.deepcopy(model)
    body = _body(own)
    with seeded(random.key(seed, "init", "head")):
        return fix(_attach(body, head, own.classes, random.key(seed, "etf"), dim, scale))


def _body(model: SplitModel) -> Body:
    """Return the parts of a model except its classifier."""
    plain = isinstance(model.projection, nn.Identity)
    return Body(model.extractor if plain else nn.Sequential(model.extractor, model.projection), model.features)


def _whole(model: SplitModel, classes: int, name: str) -> SplitModel:
    if model.classes != classes:
        raise BadInput(f"model {name!r} has {model.classes} classes, the data has {classes}: let it take `classes`")
    return model


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Draw initial weights from a key, on the CPU, without changing torch's global generator."""
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
        # the ETF's projection (Eq. 5) replaces that of the architecture; an activation before it is kept
        layer = nn.Linear(body.width, width)
        before = body.projection if isinstance(body.projection, nn.ReLU) else None
        return SplitModel(body.extractor, classifier, layer if before is None else nn.Sequential(before, layer))
    return SplitModel(body.extractor, make_head(head, features, classes, key, scale), body.projection)


# -- input and parameter checks -------------------------------------------------------------------------------------
def image(name: str, shape: Shape, least: int) -> tuple[int, int, int]:
    """Return the channels, height and width of an image that a model can take.

    Args:
        name: Name of the model, for error messages.
        shape: Shape of one input.
        least: Smallest height and width.

    Raises:
        BadInput: If inputs are not images, or too small.
    """
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
    """Return the number of elements of an input."""
    return math.prod(int(side) for side in shape)
