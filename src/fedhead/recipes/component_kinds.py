"""Component kinds of an experiment: the single list used to build, describe and compare components."""

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
from fedhead.core.components.parameters import check_all, parameters, refuse_undeclared
from fedhead.core.components.registry import Registry, instance
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.callbacks import CALLBACKS, Callback
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.loggers.base import LOGGERS, Logger
from fedhead.methods import METHODS
from fedhead.privacy.base import PROTECTIONS, Protection
from fedhead.recipes.recipe import Recipe
from fedhead.samplers.base import SAMPLERS, Sampler
from fedhead.stages import STAGES

E = TypeVar("E", bound=Algorithm)


@dataclass(frozen=True)
class ComponentKind:
    """Kind of component.

    Args:
        key: Recipe key and field of `Experiment`.
        base: Base class of the components.
        registry: Registry of the components; None: a policy, a dataclass whose first field is its name.
        many: Whether an experiment has a list of them.
        example: Example value in a recipe, for errors.
    """

    key: str
    base: type[Any]
    registry: Registry[Any] | None = None
    many: bool = False
    example: str = ""

    @property
    def noun(self) -> str:
        """Singular noun, for errors."""
        return self.key if self.registry is None else self.registry.kind

    def listed(self, value: Any) -> list[Any]:
        """Return a value as a list of zero or more components."""
        return list(value) if self.many else [] if value is None else [value]

    def build(self, value: Any, folders: Iterable[str | Path] = ()) -> Any:
        """Build the components of a value.

        Args:
            value: Texts, classes or components: a list if `many`, else a single one or None.
            folders: Search path of `file.py:Name`, before the working directory.

        Returns:
            A tuple of components if `many`, else a component or None.

        Raises:
            BadInput: If a component is of another kind or unknown, or its parameters are invalid.
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
                f"{self.noun} is {type(given).__name__}: give a name or a {self.noun}, see `fedhead ls {self.noun}s`"
            )
        if isinstance(given, str):
            _refuse_other_kind(self.registry, read_call(given, self.noun).name)
        return instance(self.registry, given, self.base, folders)

    def of(self, recipe: Recipe) -> Any:
        """Build the components of a recipe."""
        if self.key == "method":
            return component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)
        if self.key == "stages":
            given = recipe.stage_parameters
            return tuple(component(STAGES, name, given.get(name, {}), recipe.folders) for name in recipe.stages)
        return self.build(getattr(recipe, self.key), recipe.folders)

    def names(self, recipe: Recipe) -> list[str]:
        """Return the names of the components in a recipe, without their parameters."""
        return [read_call(text, self.noun).name for text in self.listed(getattr(recipe, self.key))]

    def policy_text(self, policy: Any) -> str:
        """Format a policy for a recipe: required fields by position, and others if they differ from their default."""
        first, *others = fields(policy)
        arguments = []
        for field in others:
            value = getattr(policy, field.name)
            text = "null" if value is None else str(value)
            if field.default is MISSING:
                arguments.append(text)
            elif value != field.default:
                arguments.append(f"{field.name}={text}")
        name = getattr(policy, first.name)
        return f"{name}({', '.join(arguments)})" if arguments else str(name)


COMPONENT_KINDS = (
    ComponentKind("method", Method, METHODS),
    ComponentKind("stages", Stage, STAGES, many=True, example="['ccvr']"),
    ComponentKind("uploads", Upload, UPLOADS, many=True, example="['clip(1.0)', 'half']"),
    ComponentKind("privacy", Protection, PROTECTIONS, many=True, example="['dp(epsilon=1)']"),
    ComponentKind("aggregator", Aggregator, AGGREGATORS),
    ComponentKind("sampler", Sampler, SAMPLERS),
    ComponentKind("outliers", OutlierPolicy, example="'drop(norm=5)'"),
    ComponentKind("stragglers", Stragglers, example="'drop(0.2)'"),
    ComponentKind("callbacks", Callback, CALLBACKS, many=True, example="['early_stopping']"),
)
# loggers are a part of a run, not of its experiment
LOGGER_KIND = ComponentKind("loggers", Logger, LOGGERS, many=True, example="['csv']")


def component(registry: Registry[type[E]], name: str, given: Mapping[str, Any], folders: Sequence[Path] = ()) -> E:
    """Build the named method or stage with validated parameters."""
    _refuse_other_kind(registry, name)
    component_class = registry.find(name, folders)
    refuse_undeclared(component_class, given)
    prefix = f"stage.{name}." if registry.kind == "stage" else "method."
    return component_class(**check_all(given, parameters(component_class), f"{registry.kind} {name}", prefix))


def _refuse_other_kind(registry: Registry[Any], name: str) -> None:
    """Refuse the name of a component of another kind."""
    for kind in COMPONENT_KINDS if not registry.known(name) else ():
        if kind.registry is not None and name in kind.registry:
            raise BadInput(f"{name} is one of the {kind.noun}s, not of the {registry.kind}s: give it as {kind.key}")
