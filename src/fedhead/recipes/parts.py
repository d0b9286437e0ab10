"""The component kinds of an experiment: the one list by which they are built, described, compared and traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fedhead.aggregators.base import AGGREGATORS, Aggregator
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import UPLOADS, Upload
from fedhead.core.components.component_syntax import read_call, read_policy
from fedhead.core.components.parameters import check_all, parameters
from fedhead.core.components.registry import Registry, instance
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.callbacks import CALLBACKS, Callback
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.loggers.base import LOGGERS, Logger
from fedhead.methods import METHODS
from fedhead.recipes.recipe import Recipe
from fedhead.samplers.base import SAMPLERS, Sampler
from fedhead.stages import STAGES

E = TypeVar("E", bound=Algorithm)


@dataclass(frozen=True)
class Part:
    """A kind of component.

    Args:
        key: The recipe's key, and the field of `Experiment`.
        base: The class of all such components.
        registry: Their registry; None: a policy, a dataclass whose first field is its name.
        many: Whether an experiment has a list of them.
        example: What a recipe writes, for errors.
    """

    key: str
    base: type[Any]
    registry: Registry[Any] | None = None
    many: bool = False
    example: str = ""

    @property
    def kind(self) -> str:
        """The name of one such component, in errors."""
        return self.key if self.registry is None else self.registry.kind

    def listed(self, value: Any) -> list[Any]:
        """Return a value as a list: of several components, of one, or of none."""
        return list(value) if self.many else [] if value is None else [value]

    def build(self, value: Any, folders: Iterable[str | Path] = ()) -> Any:
        """Return the components of a value.

        Args:
            value: Texts, classes or components: a list of them where there are many, else one or None.
            folders: Where `file.py:Name` is looked for, before the working directory.

        Returns:
            A tuple of components where there are many, else a component or None.

        Raises:
            BadInput: If it is of another kind, is unknown, or its parameters do not fit.
        """
        if self.many and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise BadInput(f"{self.key} is {value!r}: give a list, such as {self.example}")
        built = tuple(self._one(each, folders) for each in self.listed(value))
        return built if self.many else built[0] if built else None

    def _one(self, given: Any, folders: Iterable[str | Path]) -> Any:
        if self.registry is None:
            if not isinstance(given, str | self.base):
                raise BadInput(f"{self.key} is {type(given).__name__}: give a text, such as {self.example}")
            return read_policy(self.base, given, self.key) if isinstance(given, str) else given
        if not isinstance(given, str | type | self.base):
            raise BadInput(
                f"{self.kind} is {type(given).__name__}: give a name or a {self.kind}, see `fedhead ls {self.kind}s`"
            )
        return instance(self.registry, given, self.base, folders)

    def of(self, recipe: Recipe) -> Any:
        """Return the components that a recipe names."""
        if self.key == "method":
            return component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)
        if self.key == "stages":
            given = recipe.stage_parameters
            return tuple(component(STAGES, name, given.get(name, {}), recipe.folders) for name in recipe.stages)
        return self.build(getattr(recipe, self.key), recipe.folders)

    def names(self, recipe: Recipe) -> list[str]:
        """Return the names of the components in a recipe, without their parameters."""
        return [read_call(text, self.kind).name for text in self.listed(getattr(recipe, self.key))]

    def policy_text(self, policy: Any) -> str:
        """Return a policy as recipes write it: what has no default without its name, and what differs from it."""
        first, *others = fields(policy)
        words = []
        for field in others:
            value = getattr(policy, field.name)
            text = "null" if value is None else str(value)
            if field.default is MISSING:
                words.append(text)
            elif value != field.default:
                words.append(f"{field.name}={text}")
        name = getattr(policy, first.name)
        return f"{name}({', '.join(words)})" if words else str(name)


COMPONENT_KINDS = (
    Part("method", Method, METHODS),
    Part("stages", Stage, STAGES, many=True, example="['ccvr']"),
    Part("uploads", Upload, UPLOADS, many=True, example="['clip(1.0)', 'half']"),
    Part("aggregator", Aggregator, AGGREGATORS),
    Part("sampler", Sampler, SAMPLERS),
    Part("outliers", OutlierPolicy, example="'drop(norm=5)'"),
    Part("stragglers", Stragglers, example="'drop(0.2)'"),
    Part("callbacks", Callback, CALLBACKS, many=True, example="['early_stopping']"),
)
LOGGER_PART = Part("loggers", Logger, LOGGERS, many=True, example="['csv']")  # of a run, not of its experiment


def component(registry: Registry[type[E]], name: str, given: Mapping[str, Any], folders: Sequence[Path] = ()) -> E:
    """Return the method or stage of a name with its parameters, which are checked."""
    kind = registry.find(name, folders)
    prefix = f"stage.{name}." if registry.kind == "stage" else "method."
    return kind(**check_all(given, parameters(kind), f"{registry.kind} {name}", prefix))
