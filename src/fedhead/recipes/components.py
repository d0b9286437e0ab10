"""Components of a recipe and their sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.data.partitions.partition_registry import PARTITIONS
from fedhead.data.sources.datasets import DATASETS
from fedhead.executors.select import EXECUTORS
from fedhead.loggers.base import LOGGERS
from fedhead.metrics.registry import METRICS
from fedhead.models import HEADS, MODELS
from fedhead.recipes.component_kinds import COMPONENT_KINDS
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import is_path
from fedhead.recipes.search_paths import file_of, to_write


def registries() -> dict[str, Registry[Any]]:
    """Return the registries of all components that recipes and commands may name, by plural kind."""
    of_experiments = [kind.registry for kind in COMPONENT_KINDS if kind.registry is not None]
    others: list[Registry[Any]] = [MODELS, HEADS, DATASETS, PARTITIONS, EXECUTORS, METRICS, LOGGERS]
    return {f"{registry.kind}s": registry for registry in [*of_experiments, *others]}


def named(recipe: Recipe) -> list[tuple[Registry[Any], str]]:
    """Return all components that a recipe names."""
    texts = recipe.model if isinstance(recipe.model, tuple) else (recipe.model,)
    models = [read_call(text, "model") for text in texts]
    heads = [recipe.model_parameters.get("head"), *(model.named.get("head") for model in models)]
    data = [name for name in (recipe.dataset, recipe.public) if name is not None and not is_path(name)]
    kinds: list[tuple[Registry[Any], Iterable[str]]] = [
        *((kind.registry, kind.names(recipe)) for kind in COMPONENT_KINDS if kind.registry is not None),
        (MODELS, [model.name for model in models]),
        (HEADS, [read_call(str(head), "head").name for head in heads if head is not None]),
        (DATASETS, data),
        (PARTITIONS, [read_call(recipe.partition, "partition").name]),
        (METRICS, [read_call(text, "metric").name for text in recipe.metrics]),
    ]
    return [(registry, name) for registry, names in kinds for name in dict.fromkeys(names)]


def folders_from(place: Path, recipes: Iterable[Recipe], others: Sequence[str] = ()) -> list[str]:
    """Return the search path to write into a YAML file in `place`, so that the recipes' files are found from it.

    These are the files of components and loggers, and the initial weights; data is found from the working directory.

    Args:
        place: Folder of the YAML file.
        recipes: Recipes.
        others: Names of further components, such as an executor.
    """
    folders = [folder for recipe in recipes for folder in to_write(_files(recipe, others), recipe.folders, place)]
    return list(dict.fromkeys(folders))


def _files(recipe: Recipe, others: Sequence[str]) -> list[str]:
    """Return the files of a recipe that are found by its search path."""
    loggers = [read_call(text, "logger").name for text in recipe.loggers]
    names = [*(name for _, name in named(recipe)), *loggers, *others]
    paths = [*map(file_of, names), recipe.weights]
    return [path for path in paths if path is not None]


def sources(
    recipe: Recipe,
    executor: str | None = None,
    kinds: Iterable[str] | None = None,
    without: Collection[str] = (),
) -> list[dict[str, str]]:
    """Return the source of each component of a recipe, and of a user's executor.

    Args:
        recipe: Recipe.
        executor: Name of the executor, if the user selected one.
        kinds: Kinds of components to include, such as "method"; None: all.
        without: Kinds, or kinds and names ("metric lambda"), of components to exclude.
    """
    chosen = [(registry, name) for registry, name in named(recipe) if kinds is None or registry.kind in kinds]
    chosen = [(r, name) for r, name in chosen if r.kind not in without and f"{r.kind} {name}" not in without]
    origins = [(registry.kind, registry.source(name, recipe.folders)) for registry, name in chosen]
    if executor is not None and executor not in EXECUTORS:
        origins.append((EXECUTORS.kind, EXECUTORS.source(executor, recipe.folders)))
    return [{"kind": kind, **source.to_json()} for kind, source in origins]


def refuse_foreign(recipe: Recipe, kinds: Iterable[str], allow: Iterable[str], text: str) -> None:
    """Check, without importing it, that all code of a recipe is built in or allowed.

    Args:
        recipe: Recipe of another party.
        kinds: Kinds of components that would be loaded, such as "method".
        allow: Allowed modules and files, see `Registry.permits`.
        text: Text of the error.

    Raises:
        BadInput: With the given text.
    """
    kinds, allow = set(kinds), list(allow)
    if not all(registry.permits(name, allow) for registry, name in named(recipe) if registry.kind in kinds):
        raise BadInput(text)
