"""The recipe of a run that was begun in Python, and what of the run no recipe can hold.

Components that have a name, and parameters that can be written, are written into the recipe, each time by building
them again and comparing. The others (a class of a notebook, a function, a module, the data) are *objects*: the recipe
names them, and the run folder keeps a line about each by which a resumed run finds out that it was given another one.
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
from fedhead.recipes.differences import describe, differences
from fedhead.recipes.experiment import local
from fedhead.recipes.parts import COMPONENT_KINDS, Part, component
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES

Objects = dict[str, str]  # what each object is, by the recipe's key
GIVE_AGAIN = "give the same again"


def described(
    experiment: Experiment,
    numbers: Recipe,
    federation: Federation,
    models: Sequence[str | None],
) -> tuple[Recipe, Objects]:
    """Return the recipe of an experiment that was made in Python, and what the recipe can't hold.

    Args:
        experiment: The experiment.
        numbers: A recipe with its numbers alone.
        federation: The data, which is always an object.
        models: The text that each model was given as; None: it is an object.
    """
    keys = numbers.flat()
    objects: Objects = {"federation": f"{federation.title} of {len(federation)} clients"}
    folders: list[Path] = []  # where the files of components are
    for part in COMPONENT_KINDS:
        components = part.listed(getattr(experiment, part.key))
        if part.registry is None:
            texts = [part.policy_text(one) for one in components]
        elif part.key in ("method", "stages"):
            texts = [_algorithm(part.registry, one, keys, objects, folders) for one in components]
        else:
            texts = [_call(part, one, objects, folders) for one in components]
        keys[part.key] = texts if part.many else texts[0] if texts else None
    keys["metrics"] = list(experiment.metrics)
    for name, one in experiment.metrics.items():
        if not _same(lambda: registry.find([name], objective=federation.objective)[name], one):  # noqa: B023 (called at once)
            objects[f"metric {name}"] = _line(one.function)
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
    """Return the name of a method or stage; its parameters are entered into the keys, or it into the objects."""
    if registry is STAGES:
        thing = dataclasses.replace(thing, method=Method())  # as it is before it is put on top of a method
    name, own = _named(registry, thing, folders)
    prefix, title = ("method", "method") if registry is METHODS else (f"stage.{name}", f"stage {name}")
    if _same(lambda: component(registry, name, own, folders), thing):
        keys |= {f"{prefix}.{word}": value for word, value in own.items()}
    else:
        objects[title] = _line(thing)
    return name


def kinds(objects: Collection[str]) -> set[str]:
    """Return the kinds of components, or kinds and names, that are objects, as `components.sources` leaves them out."""
    found = {"dataset", "partition"} if "federation" in objects else set()
    for name in objects:
        kind = name.split(" ")[0]
        found |= {"model", "head"} if kind == "model" else {name}
    return found


def without(recipe: Recipe, objects: Collection[str]) -> Recipe:
    """Return a recipe without the components that are objects, but for its method and stages."""
    kept: dict[str, Any] = {"metrics": [name for name in recipe.metrics if f"metric {name}" not in objects]}
    for part in COMPONENT_KINDS[2:]:
        texts = part.listed(getattr(recipe, part.key))
        known = [text for text in texts if f"{part.kind} {read_call(text, part.kind).name}" not in objects]
        kept[part.key] = known if part.many else known[0] if known else None
    return dataclasses.replace(recipe, **kept)


def check_same(run: Any, stored: Mapping[str, str], given: Mapping[str, str] | None) -> None:
    """Refuse to go on with a run with other objects than it was begun with.

    Args:
        run: The run folder.
        stored: What the folder says of its objects.
        given: What was given now; None: a recipe, which has none.

    Raises:
        BadInput: If they differ.
    """
    if given is None:
        if stored:
            raise BadInput(
                f"{run} was begun in Python with its own {', '.join(stored)}: resume it there with the same, "
                f"fedhead.run(…, out={str(run)!r}, resume=True)"
            )
        return
    if not stored:
        raise BadInput(f"{run} was begun by a recipe: resume it with fedhead run … --out {run} --resume")
    named = dict.fromkeys([*stored, *given], "named by the recipe")
    if others := differences({**named, **stored}, {**named, **given}):
        texts = describe(others, "another {key}: it was {old} and is now {new}")
        raise BadInput(f"{run} was begun with {texts}; {GIVE_AGAIN}")


def need(run: Any, stored: Collection[str], needed: Collection[str], given: Collection[str] = ()) -> None:
    """Refuse to open a run for work that needs objects which are not there.

    Args:
        run: The run folder.
        stored: The objects that the run was begun with.
        needed: The kinds of objects that the work needs.
        given: Objects that are there, by kind, or by kind and name.

    Raises:
        BadInput: It names them, and the call that gives them.
    """
    wanted = {name: name.split(" ")[0] for name in stored if name not in given}
    missing = [name for name, kind in wanted.items() if kind in needed and kind not in given]
    if missing:
        words = dict.fromkeys(
            {"stage": "stages", "upload": "uploads"}.get(word, word)
            for word in (name.split(" ")[0] for name in missing)
        )
        call = ", ".join(f"{word}=…" for word in words)
        own = f"{run} was begun in Python with its own {', '.join(missing)}"
        raise BadInput(f"{own}: give the same, fedhead.load({str(run)!r}, {call})")


def architecture_digest(model: SplitModel) -> str:
    """Return a digest of the names and shapes of a model's weights."""
    text = " ".join(f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items())
    return digest_text(text, 6)


def _named(registry: Registry[Any] | None, thing: Any, folders: list[Path]) -> tuple[str, dict[str, Any]]:
    """Return the name of a component and the parameters that differ from their defaults."""
    kind = type(thing)
    own = str(getattr(kind, "name", ""))
    known = registry is not None and own in registry and registry[own] is kind
    name = own if known else _importable(kind, folders) or name_of(kind)
    changed = {
        f.name: getattr(thing, f.name)
        for f in dataclasses.fields(thing)
        if f.name != "method" and not _same(lambda: _default(f), getattr(thing, f.name))  # noqa: B023 (called at once)
    }
    return name, {word: list(v) if isinstance(v, tuple) else v for word, v in changed.items()}


def _default(field: Any) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _importable(kind: Any, folders: list[Path]) -> str | None:
    """Return `module:Name` or `file.py:Name`, by which another process finds a class; None where none could.

    Args:
        kind: The class.
        folders: Where files are looked for, before the working directory; a file's own is added.
    """
    module, name = kind.__module__, kind.__qualname__
    found = getattr(sys.modules.get(module), name, None)
    if module == "__main__" or found is not kind:
        return None
    if (file := loaded_file(module)) is None:
        return f"{module}:{name}"
    if find_file(file.name, [*folders, file.parent]) != file:  # another folder has a file of this name
        return f"{file}:{name}"
    if file.parent not in folders:
        folders.append(file.parent)
    return f"{file.name}:{name}"


def _call(part: Part, thing: Any, objects: Objects, folders: list[Path]) -> str:
    """Return a component as recipes write it, `name(parameter=value)`, and note it where it can't be read back."""
    name, own = _named(part.registry, thing, folders)
    text = f"{name}({', '.join(f'{word}={value}' for word, value in own.items())})" if own else name
    if not _same(lambda: part.build([text] if part.many else text, folders), (thing,) if part.many else thing):
        objects[f"{part.kind} {name}"] = _line(thing)
    return text


def _same(make: Callable[[], Any], thing: Any) -> bool:
    try:
        return bool(make() == thing)
    except Exception:  # whatever a user's own class does in a comparison: it can't be written down then
        return False


def _line(thing: Any) -> str:
    """Say what an object is: its qualified name, its parameters, and a digest of its code."""
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
