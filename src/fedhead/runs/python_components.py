"""Recipe of a run that was started in Python, and its objects, which a recipe can't store.

Named components with serializable parameters are written into the recipe, after checking that building them from it
gives equal ones. All others (a class of a notebook, a function, a module, the data) are *objects*: the recipe names
them, and the run folder stores a description of each, which a resumed run compares with its own objects.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhead.algorithm.method import Method
from fedhead.core.components.component_check import name_of
from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.loading import find_file, loaded_file
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.digest import digest_text
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.experiment import Experiment
from fedhead.methods import METHODS
from fedhead.metrics import registry
from fedhead.models.split_model import SplitModel
from fedhead.recipes.component_kinds import COMPONENT_KINDS, ComponentKind, component
from fedhead.recipes.differences import describe, differences
from fedhead.recipes.experiment import local
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES

Objects = dict[str, str]  # descriptions by recipe key
GIVE_AGAIN = "give the same again"


def described(
    experiment: Experiment,
    numbers: Recipe,
    federation: Federation,
    models: Sequence[str | None],
) -> tuple[Recipe, Objects]:
    """Return the recipe of an experiment that was built in Python, and its objects.

    Args:
        experiment: Experiment.
        numbers: Recipe with the numeric keys only.
        federation: Data, which is always an object.
        models: Recipe text of each model; None: the model is an object.
    """
    keys = numbers.flat()
    objects: Objects = {"federation": f"{federation.title} of {len(federation)} clients"}
    folders: list[Path] = []  # folders of the components' files
    for kind in COMPONENT_KINDS:
        components = kind.listed(getattr(experiment, kind.key))
        if kind.registry is None:
            texts = [kind.policy_text(item) for item in components]
        elif kind.key in ("method", "stages"):
            texts = [_algorithm(kind.registry, item, keys, objects, folders) for item in components]
        else:
            texts = [_call(kind, item, objects, folders) for item in components]
        keys[kind.key] = texts if kind.many else texts[0] if texts else None
    keys["metrics"] = list(experiment.metrics)
    for name, metric in experiment.metrics.items():
        if not _same(lambda: registry.find([name], objective=federation.objective)[name], metric):  # noqa: B023 (called at once)
            objects[f"metric {name}"] = _line(metric.function)
    if not _same(lambda: local(Recipe.from_flat(keys)), experiment.local):
        objects["optimizer"] = repr(experiment.local.optimizer)
    names = [text or _model_name(model) for text, model in zip(models, experiment.models, strict=True)]
    keys["model"] = names[0] if len(names) == 1 else names
    for number, (text, model) in enumerate(zip(models, experiment.models, strict=True)):
        if text is None:
            objects[f"model {number}"] = f"{_model_name(model)} of {architecture_digest(model)}"
    if experiment.assign is not None:
        objects["assign"] = str(list(experiment.assign))
    return Recipe.from_flat(keys, folders), objects


def _algorithm(registry: Registry[Any], thing: Any, keys: dict[str, Any], objects: Objects, folders: list[Path]) -> str:
    """Return the name of a method or stage; add its parameters to the keys, or the component to the objects."""
    if registry is STAGES:
        thing = dataclasses.replace(thing, method=Method(), release=None)  # reset `on_method` and `protect`
    name, parameters = _named(registry, thing, folders)
    prefix, title = ("method", "method") if registry is METHODS else (f"stage.{name}", f"stage {name}")
    if _same(lambda: component(registry, name, parameters, folders), thing):
        keys |= {f"{prefix}.{key}": value for key, value in parameters.items()}
    else:
        objects[title] = _line(thing)
    return name


def kinds(objects: Collection[str]) -> set[str]:
    """Return the kinds, or kinds and names, of components that are objects, for `components.sources`."""
    names = {"dataset", "partition"} if "federation" in objects else set()
    for name in objects:
        kind = name.split(" ")[0]
        names |= {"model", "head"} if kind == "model" else {name}
    return names


def without(recipe: Recipe, objects: Collection[str]) -> Recipe:
    """Return a recipe without the components that are objects, except its method and stages."""
    kept: dict[str, Any] = {"metrics": [name for name in recipe.metrics if f"metric {name}" not in objects]}
    for kind in COMPONENT_KINDS[2:]:
        texts = kind.listed(getattr(recipe, kind.key))
        known = [text for text in texts if f"{kind.noun} {read_call(text, kind.noun).name}" not in objects]
        kept[kind.key] = known if kind.many else known[0] if known else None
    return dataclasses.replace(recipe, **kept)


def check_same(run: Any, stored: Mapping[str, str], given: Mapping[str, str] | None) -> None:
    """Check that a run is resumed with the objects that it was started with.

    Args:
        run: Run folder.
        stored: Stored descriptions of its objects.
        given: Descriptions of the new objects; None: a recipe, without objects.

    Raises:
        BadInput: If they differ.
    """
    if given is None:
        if stored:
            raise BadInput(
                f"{run} was begun with its own {', '.join(stored)}, which no recipe holds: resume it as it was begun, "
                f"fedhead.run(…, out={str(run)!r}, resume=True), or fedhead deploy up --resume for real sites"
            )
        return
    if not stored:
        raise BadInput(f"{run} was begun by a recipe: resume it with fedhead run … --out {run} --resume")
    defaults = dict.fromkeys([*stored, *given], "named by the recipe")
    if others := differences({**defaults, **stored}, {**defaults, **given}):
        texts = describe(others, "another {key}: it was {old} and is now {new}")
        raise BadInput(f"{run} was begun with {texts}; {GIVE_AGAIN}")


def need(run: Any, stored: Collection[str], needed: Collection[str], given: Collection[str] = ()) -> None:
    """Check that all objects that an operation needs are available.

    Args:
        run: Run folder.
        stored: Objects that the run was started with.
        needed: Kinds of objects that the operation needs.
        given: Available objects, by kind, or by kind and name.

    Raises:
        BadInput: With the missing objects, and the call that passes them.
    """
    wanted = {name: name.split(" ")[0] for name in stored if name not in given}
    missing = [name for name, kind in wanted.items() if kind in needed and kind not in given]
    if missing:
        keywords = dict.fromkeys(
            {"stage": "stages", "upload": "uploads"}.get(keyword, keyword)
            for keyword in (name.split(" ")[0] for name in missing)
        )
        call = ", ".join(f"{keyword}=…" for keyword in keywords)
        reason = f"{run} was begun with its own {', '.join(missing)}, which its folder does not hold"
        raise BadInput(f"{reason}: give the same, fedhead.load({str(run)!r}, {call})")


def architecture_digest(model: SplitModel) -> str:
    """Return a digest of the names and shapes of a model's weights."""
    text = " ".join(f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items())
    return digest_text(text, 6)


def _named(registry: Registry[Any] | None, thing: Any, folders: list[Path]) -> tuple[str, dict[str, Any]]:
    """Return the name of a component and its non-default parameters."""
    kind = type(thing)
    name_attribute = str(getattr(kind, "name", ""))
    known = registry is not None and name_attribute in registry and registry[name_attribute] is kind
    name = name_attribute if known else _importable(kind, folders) or name_of(kind)
    changed = {
        f.name: getattr(thing, f.name)
        for f in dataclasses.fields(thing)
        if f.name != "method" and not _same(lambda: _default(f), getattr(thing, f.name))  # noqa: B023 (called at once)
    }
    return name, {word: list(v) if isinstance(v, tuple) else v for word, v in changed.items()}


def _default(field: Any) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _importable(kind: Any, folders: list[Path]) -> str | None:
    """Return `module:Name` or `file.py:Name`, by which another process can import a class; None if it can't.

    Args:
        kind: Class.
        folders: Search path of files, before the working directory; the folder of the file is added.
    """
    module, name = kind.__module__, kind.__qualname__
    attribute = getattr(sys.modules.get(module), name, None)
    if module == "__main__" or attribute is not kind:
        return None
    if (file := loaded_file(module)) is None:
        return f"{module}:{name}"
    if find_file(file.name, [*folders, file.parent]) != file:  # shadowed by a file in another folder
        return f"{file}:{name}"
    if file.parent not in folders:
        folders.append(file.parent)
    return f"{file.name}:{name}"


def _call(kind: ComponentKind, thing: Any, objects: Objects, folders: list[Path]) -> str:
    """Format a component as `name(parameter=value)`; add it to the objects if that can't be parsed back."""
    name, parameters = _named(kind.registry, thing, folders)
    text = f"{name}({', '.join(f'{key}={value}' for key, value in parameters.items())})" if parameters else name
    if not _same(lambda: kind.build([text] if kind.many else text, folders), (thing,) if kind.many else thing):
        objects[f"{kind.noun} {name}"] = _line(thing)
    return text


def _same(make: Callable[[], Any], thing: Any) -> bool:
    try:
        return bool(make() == thing)
    except Exception:  # a user's class may raise anything in a comparison; then it is an object
        return False


def _line(thing: Any) -> str:
    """Describe an object: its qualified name, its parameters and a digest of its code."""
    kind = thing if inspect.isroutine(thing) else getattr(thing, "func", type(thing))
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', name_of(thing))}"
    shown = "" if inspect.isroutine(thing) else f" {thing!r}"
    try:
        code = digest_text(inspect.getsource(kind), 6)
    except (OSError, TypeError):
        return name + shown
    return f"{name}{shown}, code {code}"


def _model_name(model: SplitModel) -> str:
    return type(model if model.origin is None else model.origin.module).__name__
