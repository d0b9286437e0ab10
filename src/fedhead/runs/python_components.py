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

from fedhead.aggregators.base import AGGREGATORS
from fedhead.algorithm.method import Method
from fedhead.algorithm.upload import UPLOADS
from fedhead.core.components.component_check import name_of
from fedhead.core.components.loading import find_file, loaded_file
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.digest import digest_text
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds import callbacks
from fedhead.engine.rounds.callbacks import CALLBACKS
from fedhead.methods import METHODS
from fedhead.metrics import registry
from fedhead.models.split_model import SplitModel
from fedhead.recipes import build
from fedhead.recipes.experiment import Experiment
from fedhead.recipes.recipe import Recipe
from fedhead.samplers.base import SAMPLERS
from fedhead.stages import STAGES

Objects = dict[str, str]  # what each object is, by the recipe's key
GIVE_AGAIN = "give the same again"


def described(
    made: Experiment, federation: Federation, models: Sequence[str | None], assign: Sequence[int] | None
) -> tuple[Recipe, Objects]:
    """Return the recipe of what was given in Python, and what it can't hold.

    Args:
        made: The experiment, whose recipe has the numbers alone.
        federation: The data, which is always an object.
        models: The text that each model was given as; None: it is an object.
        assign: The model of each client, where it was given.
    """
    keys = made.recipe.flat() | {
        "dataset": federation.title,
        "partition": federation.partition,
        "clients": len(federation),
    }
    if federation.objective != "multiclass":
        keys["objective"] = federation.objective
    objects: Objects = {"federation": f"{federation.title} of {len(federation)} clients"}
    folders: list[Path] = []  # where the files of components are
    keys["method"], own = _named(METHODS, made.method, folders)
    keys |= {f"method.{word}": value for word, value in own.items()}
    if not _same(lambda: build.component(METHODS, keys["method"], own, folders), made.method):
        keys = {key: value for key, value in keys.items() if not key.startswith("method.")}
        objects["method"] = _line(made.method)
    keys["stages"] = []
    for stage in made.stages:
        unbound = dataclasses.replace(stage, method=Method())
        name, own = _named(STAGES, unbound, folders)
        keys["stages"].append(name)
        if _same(lambda: build.component(STAGES, name, own, folders), unbound):  # noqa: B023 (called at once)
            keys |= {f"stage.{name}.{word}": value for word, value in own.items()}
        else:
            objects[f"stage {name}"] = _line(unbound)
    keys["uploads"] = [_call(UPLOADS, step, build.upload, objects, "upload", folders) for step in made.uploads]
    if made.aggregator is not None:
        keys["aggregator"] = _call(AGGREGATORS, made.aggregator, build.aggregator, objects, "aggregator", folders)
    if made.sampler is not None:
        keys["sampler"] = _call(SAMPLERS, made.sampler, build.sampler, objects, "sampler", folders)
    if made.stragglers is not None:
        late = made.stragglers
        keys["stragglers"] = f"{late.policy}({late.share}, seed={'null' if late.seed is None else late.seed})"
    if made.outliers is not None:
        policy = made.outliers
        keys["outliers"] = f"{policy.action}(norm={policy.norm}, samples={policy.samples})"
    keys["metrics"] = list(made.metrics)
    for name, one in made.metrics.items():
        if not _same(lambda: registry.find([name], objective=federation.objective)[name], one):  # noqa: B023 (called at once)
            objects[f"metric {name}"] = _line(one.function)
    keys["callbacks"] = [_call(CALLBACKS, one, callbacks.make, objects, "callback", folders) for one in made.callbacks]
    if not _same(lambda: build.local(Recipe.from_flat(keys)), made.local):
        objects["optimizer"] = repr(made.local.optimizer)
    names = [text or _model_name(model) for text, model in zip(models, made.models, strict=True)]
    keys["model"] = names[0] if len(names) == 1 else names
    for number, (text, model) in enumerate(zip(models, made.models, strict=True)):
        if text is None:
            objects[f"model {number}"] = f"{_model_name(model)} of {architecture_digest(model)}"
    if assign is not None:
        objects["assign"] = str(list(assign))
    return Recipe.from_flat(keys, folders), objects


def kinds(objects: Mapping[str, str]) -> set[str]:
    """Return the kinds of components, or kinds and names, that are objects, as `components.sources` leaves them out."""
    found = {"dataset", "partition"} if "federation" in objects else set()
    for name in objects:
        kind = name.split(" ")[0]
        found |= {"model", "head"} if kind == "model" else {name}
    return found


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
                f"{run} was begun in Python with its own {_list(stored)}: resume it there with the same, "
                f"fedhead.run(…, out={str(run)!r}, resume=True)"
            )
        return
    if not stored:
        raise BadInput(f"{run} was begun by a recipe: resume it with fedhead run … --out {run} --resume")
    for name in [*stored, *given]:
        if stored.get(name) != given.get(name):
            was, now = (words.get(name, "named by the recipe") for words in (stored, given))
            raise BadInput(f"{run} was begun with another {name}: it was {was} and is now {now}; {GIVE_AGAIN}")


def need(run: Any, stored: Mapping[str, str], given: Collection[str] = ()) -> None:
    """Refuse to open a run for work that needs objects which are not there.

    Raises:
        BadInput: It names them, and the call that gives them.
    """
    optional = ("metric ", "callback ")  # which no question to a finished run needs
    missing = [name for name in stored if name.split(" ")[0] not in given and not name.startswith(optional)]
    if missing:
        words = dict.fromkeys({"stage": "stages"}.get(word, word) for word in (name.split(" ")[0] for name in missing))
        call = ", ".join(f"{word}=…" for word in words)
        own = f"{run} was begun in Python with its own {_list(missing)}"
        raise BadInput(f"{own}: give the same, fedhead.load({str(run)!r}, {call})")


def architecture_digest(model: SplitModel) -> str:
    """Return a digest of the names and shapes of a model's weights."""
    text = " ".join(f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items())
    return digest_text(text, 6)


def _list(names: Any) -> str:
    return ", ".join(names)


def _named(registry: Registry[Any], thing: Any, folders: list[Path]) -> tuple[str, dict[str, Any]]:
    """Return the name of a component and the parameters that differ from their defaults."""
    kind = type(thing)
    own = str(getattr(kind, "name", ""))
    name = own if own in registry and registry[own] is kind else _importable(kind, folders) or name_of(kind)
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


def _call(
    registry: Registry[Any],
    thing: Any,
    make: Callable[[Any, Sequence[Path]], Any],
    objects: Objects,
    kind: str,
    folders: list[Path],
) -> str:
    """Return a component as recipes write it, `name(parameter=value)`, and note it where it can't be read back."""
    name, own = _named(registry, thing, folders)
    text = f"{name}({', '.join(f'{word}={value}' for word, value in own.items())})" if own else name
    if not _same(lambda: make(text, folders), thing):
        objects[f"{kind} {name}"] = _line(thing)
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
