"""Registry of models, and their construction: architecture, feature layer, head, initial weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import nn

from fedhead.core.components.component_check import check_function, first_docline
from fedhead.core.components.component_syntax import Call
from fedhead.core.components.parameters import check, check_all, parameters
from fedhead.core.components.ranges import Above, AtLeast, Below
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.training import global_generators, random
from fedhead.models.heads import ChosenHead, ETFHead, HeadLike, choose_head
from fedhead.models.repair import fix
from fedhead.models.split_model import SplitModel

Shape = Sequence[int]  # shape of one input, without the batch axis
Width = Annotated[int, AtLeast(1)]  # number of channels, units or blocks
DropRate = Annotated[float, AtLeast(0), Below(1)]  # probability of dropout
RUN_DECIDES = ("name", "input_shape", "classes", "seed", "folders")  # arguments of `build` that a run sets


class FeatureExtractor(NamedTuple):
    """Parts of an architecture except its classifier.

    Attributes:
        extractor: Maps inputs to features h.
        width: Dimension of h.
        projection: Maps h to z; None: the identity.
        features: Dimension of z; None: that of h.
    """

    extractor: nn.Module
    width: int
    projection: nn.Module | None = None
    features: int | None = None


class Preprocessing(NamedTuple):
    """Preprocessing of a pretrained model's inputs.

    Attributes:
        resize: Height and width of images.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        encode: Encoder of texts.
    """

    resize: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    encode: str | None = None


class Architecture(NamedTuple):
    """Named architecture with its builder."""

    name: str
    description: str
    builder: Callable[..., FeatureExtractor | SplitModel]

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Preprocessing of a pretrained model's inputs; None: not pretrained, or not specified."""
        return getattr(self.builder, "preprocessing", None)

    def parameters(self) -> dict[str, Any]:
        """Return all parameters with their types and ranges: the architecture's and those of `build`."""
        return self.own_parameters() | {w: hint for w, hint in parameters(build).items() if w not in RUN_DECIDES}

    def own_parameters(self) -> dict[str, Any]:
        """Return the parameters of the architecture, in order."""
        hints = list(parameters(self.builder).items())[1:]  # the first is the input shape
        return {word: hint for word, hint in hints if word != "classes"}

    def arguments(self, call: Call) -> dict[str, Any]:
        """Return the checked arguments of a call such as `protocnn(18, head=etf)`."""
        return call.arguments("model", self.own_parameters(), named_only=self.parameters())

    def make(
        self, shape: Shape | Mapping[str, Shape], classes: int, params: Mapping[str, Any]
    ) -> FeatureExtractor | SplitModel:
        """Call the builder."""
        built_in = str(self.builder.__module__).startswith("fedhead.")
        if isinstance(shape, Mapping) and built_in and not getattr(self.builder, "takes_names", False):
            raise BadInput(
                f"model {self.name} takes one array, the samples have the inputs {', '.join(shape)}: give your own "
                "module with arguments of these names, fedhead.split(module, classifier='…')"
            )
        extra = {"classes": classes} if "classes" in inspect.signature(self.builder).parameters else {}
        with user_code(f"model {self.name}"):
            model = self.builder(shape if isinstance(shape, Mapping) else tuple(shape), **extra, **params)
        if isinstance(model, FeatureExtractor | SplitModel):
            return model
        raise BadInput(
            f"model {self.name!r} made {type(model).__name__}: return fedhead.FeatureExtractor(extractor, width), "
            "or fedhead.split(module, classifier='…')"
        )


ModelLike = str | Architecture | Callable[..., FeatureExtractor | SplitModel]  # specifies an architecture
B = TypeVar("B", bound=Callable[..., Any])
MODELS = Registry[Architecture](
    "model",
    "fedhead.models",
    lambda entry, name: _checked(entry, name),
    home=["fedhead.models.architectures", "fedhead.models.pretrained"],
    collections={"hf": "fedhead.models.pretrained.hf_models:hf_model"},
)
"""Registry of models."""


def register(name: str, description: str = "", preprocessing: Preprocessing | None = None) -> Callable[[B], B]:
    """Register an architecture under a name: a function (input_shape, parameters with defaults).

    It returns a `FeatureExtractor`, to which any head is attached, or a whole `SplitModel`. A parameter `classes` gets
    the number of classes. Parameters are checked against their type hints and ranges before the function is called.

    Args:
        name: Name in recipes.
        description: One line for `fedhead ls models`; by default the docstring's first line.
        preprocessing: Preprocessing of a pretrained model's inputs, for `fedhead oneshot`.

    Returns:
        A decorator of functions.
    """
    enter = MODELS.decorator(name, description)

    def decorate(builder: B) -> B:
        vars(builder)["preprocessing"] = preprocessing
        return enter(builder)

    return decorate


def _checked(entry: Any, name: str) -> Architecture:
    if isinstance(entry, Architecture):
        return entry
    builder = check_function(entry, name, "model", ["input_shape"], "a fedhead.FeatureExtractor", filled_in=["classes"])
    return Architecture(name, getattr(entry, "description", "") or first_docline(entry), builder)


def build(
    name: ModelLike,
    input_shape: Shape,
    classes: Annotated[int, AtLeast(1)],
    head: HeadLike | None = None,
    seed: int = 0,
    *,
    folders: Iterable[str | Path] = (),
    feature_layer: Width | None = None,
    dim: Width | None = None,
    scale: Annotated[float, Above(0)] = 1.0,
    projected: bool = True,
    **params: Any,
) -> SplitModel:
    """Build a model from the name of an architecture.

    Initial weights depend only on the seed and the names.

    Args:
        name: Name of the architecture (`fedhead ls models`), also with parameters as in `mlp(hidden=[32])`; or a
            function (input_shape) that returns a `fedhead.FeatureExtractor` or a `SplitModel`.
        input_shape: Shape of one input, without the batch axis.
        classes: Number of classes, or of outputs for other objectives.
        head: Name of the head (`fedhead ls heads`), its class, or a function (features, classes);
            linear unless the architecture has its own.
        seed: Seed of the initial weights.
        folders: Folders in which `file.py:Name` is searched before the working directory.
        feature_layer: Width of a Linear layer at the end of the extractor, followed by a ReLU before the classifier,
            so that architectures of any width can share one classifier (FedClassAvg).
        dim: Dimension of an ETF head; by default the number of classes.
        scale: Initial temperature of an ETF or prototype head.
        projected: Whether an ETF head has a projection layer; False as in FedETF's ablation.
        **params: Parameters of the architecture.

    Returns:
        The model.

    Raises:
        BadInput: If a name or parameter is unknown, or a parameter is invalid for the architecture.

    >>> model = build("mlp", (1, 8, 8), classes=10, hidden=(32,))
    >>> model.features, model.classes
    (32, 10)
    """
    folders = list(folders)
    call, entry = MODELS.resolve_call(name, folders)
    name, given = entry.name, entry.arguments(call)
    settings = {"head": head, "feature_layer": feature_layer, "dim": dim, "scale": scale, "projected": projected}
    usual = inspect.signature(build).parameters
    changed = {word for word, value in settings.items() if value != usual[word].default}
    if twice := given.keys() & (changed | params.keys()):
        raise BadInput(f"model {call.text}: {min(twice)} is given twice")
    check(f"model {name}: classes", classes, parameters(build)["classes"])
    params = check_all({**settings, **params, **given}, entry.parameters(), f"model {name}", f"model {name}: ")
    head, feature_layer, dim, scale, projected = (params.pop(word) for word in settings)
    chosen = None if head is None else choose_head(head, folders)
    if (chosen is None or chosen.builder is not ETFHead) and (dim is not None or not projected):
        odd = "dim" if dim is not None else "projected"
        has = "linear" if chosen is None else chosen.name
        raise BadInput(f"{odd} is a parameter of the etf head alone; model {name!r} has head {has!r}")
    require(dim is None or projected, f"dim={dim} needs the projection layer: leave out dim, or projected=False")
    with seeded(random.key(seed, "init")):
        module = entry.make(input_shape, classes, params)
        if isinstance(module, SplitModel):
            if feature_layer is None and (chosen is None or (chosen.name == module.head and not chosen.parameters)):
                if module.classes != classes:
                    problem = f"has {module.classes} classes, the data has {classes}: let it take `classes`"
                    raise BadInput(f"model {name!r} {problem}")
                return fix(module)
            chosen = chosen or choose_head(module.head, folders)
        body = _body(module) if isinstance(module, SplitModel) else module
        if feature_layer is not None:
            extractor = nn.Sequential(body.extractor, nn.Linear(body.width, feature_layer))
            body = FeatureExtractor(extractor, feature_layer, nn.ReLU(), feature_layer)
    # a separate key, so that clients of different architectures start from the same classifier
    with seeded(random.key(seed, "init", "head")):
        chosen = chosen or choose_head("linear")
        return fix(_attach(body, chosen, classes, random.key(seed, "etf"), dim, scale, projected))


def with_head(
    model: SplitModel, head: HeadLike, seed: int = 0, *, dim: int | None = None, scale: float = 1.0
) -> SplitModel:
    """Return a copy of a model with a new head.

    Args:
        model: The model.
        head: Name of the head (`fedhead ls heads`), its class, or a function (features, classes).
        seed: Seed of the head's initial weights.
        dim: Dimension of an ETF head.
        scale: Initial temperature of an ETF or prototype head.

    Returns:
        The copy.

    Raises:
        BadInput: If the head is unknown.

    >>> with_head(build("mlp", (1, 8, 8), classes=10), "etf").fixed
    frozenset({'classifier.weight'})
    """
    chosen = choose_head(head)
    body = _body(copy.deepcopy(model))
    with seeded(random.key(seed, "init", "head")):
        new = fix(_attach(body, chosen, model.classes, random.key(seed, "etf"), dim, scale))
    if isinstance(model.projection, nn.Identity):  # otherwise the projection is now part of the extractor
        new.origin = model.origin
    return new


def _body(model: SplitModel) -> FeatureExtractor:
    """Return the parts of a model except its classifier."""
    plain = isinstance(model.projection, nn.Identity)
    return FeatureExtractor(
        model.extractor if plain else nn.Sequential(model.extractor, model.projection), model.features
    )


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the initialization of weights on the CPU, and restore the global generators afterwards."""
    with global_generators.seeded(key), torch.device("cpu"):
        yield


def _attach(
    body: FeatureExtractor,
    head: ChosenHead,
    classes: int,
    key: int,
    dim: int | None,
    scale: float,
    projected: bool = True,
) -> SplitModel:
    if head.builder is ETFHead and projected:
        width = classes if dim is None else dim
        classifier = head.make(width, classes, key, scale)
        # the ETF's projection (Eq. 5) replaces the architecture's, except for an activation
        layer = nn.Linear(body.width, width)
        before = body.projection if isinstance(body.projection, nn.ReLU) else None
        return SplitModel(body.extractor, classifier, layer if before is None else nn.Sequential(before, layer))
    features = body.width if body.features is None else body.features
    return SplitModel(body.extractor, head.make(features, classes, key, scale), body.projection)


# -- input and parameter checks -------------------------------------------------------------------------------------
def image(name: str, shape: Shape, least: int, resize: int | None = None) -> tuple[int, int, int]:
    """Check and return the channels, height and width of a model's input images.

    Args:
        name: Name of the model, for error messages.
        shape: Shape of one input.
        least: Smallest height and width.
        resize: Recommended height and width; None: the smallest.

    Raises:
        BadInput: If inputs are not images, or too small.
    """
    require(len(shape) == 3, f"model {name!r} takes images of (channels, height, width), not inputs of {tuple(shape)}")
    channels, height, width = (int(side) for side in shape)
    require(
        min(height, width) >= least,
        f"model {name!r} can't take {height}x{width} images: it needs at least {least}x{least}; "
        f"for smaller ones use 'digitscnn', 'resnet20' or 'mlp', or resize them: resize: {resize or least}",
    )
    return channels, height, width
