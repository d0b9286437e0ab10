"""Parser of sweeps: axes over recipe keys, from the command line, from Python or from a YAML file.

A sweep becomes a `Table`, like the paper tables: every combination of one choice per axis is a cell.
docs/sweeps.md describes the file.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from fedhead.core.components.component_syntax import read_call, rejoin
from fedhead.core.components.parameters import check, parameters
from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml
from fedhead.recipes import recipe as recipes
from fedhead.recipes.recipe import Recipe, expand_calls, is_key, unknown_key
from fedhead.recipes.search_paths import FOLDERS, with_written
from fedhead.studies.sweep.table_checks import check_layers, refuse_unknown
from fedhead.studies.sweep.tables import Table, overlay

_SWEEP_KEYS = {FOLDERS, "recipe", "seeds", "base", "axes", "rules", "skip"}
_CHOICE_KEYS = {"set", "stage", "seeds"}
_Keys = dict[Any, Any]
_KINDS: Mapping[str, Any] = {
    "recipe": str,
    "base": _Keys,
    "axes": _Keys,
    "rules": list[_Keys],
    "skip": list[_Keys],
    "set": _Keys,
    "stage": str,
    "when": _Keys,
}
_LISTS = {name for name, hint in parameters(Recipe).items() if typing.get_origin(hint) is tuple}
_BARE = ("dataset", "partition", "model", "method", "stages")  # keys that are left out of cell names


def plan(source: str | Path, given: Mapping[str, Any]) -> Table:
    """Return the sweep of a recipe or of a sweep file, with additional axes and values.

    Args:
        source: Name of a built-in recipe, or YAML file of a recipe or a sweep.
        given: Values by recipe key. A list is an axis; for keys that take a list, a list of lists is an axis. All
            other values hold for every cell.

    Raises:
        BadInput: A part of it is invalid, unknown or empty, or there is no axis.
    """
    given = {str(key): plain(value) for key, value in check("axes", given, _Keys).items()}
    for key, value in given.items():
        _check_key(key)
        _refuse_objects(key, value)
    content, base, title = _read(source)
    axes_given = {key: values for key, values in given.items() if _is_axis(key, values)}
    fixed = expand_calls({key: value for key, value in given.items() if key not in axes_given})
    axes = dict(content.get("axes", {}))
    for key, values in axes_given.items():
        if key in axes:
            raise BadInput(f"{key}: the sweep {source} has this axis already; leave one out")
        if key in fixed:
            raise BadInput(f"{key}: it is an axis and has the value {fixed[key]!r} as well; give one of them")
        axes[key] = axis_choices(key, values)
        _refuse_twice(key, axes[key], fixed.keys())
    over_keys = {key for key, choices in axes.items() if all(key in _set(layer) for layer in choices.values())}
    for key, choices in axes.items():
        _refuse_twice(key, choices, over_keys - {key})
    rules = list(content.get("rules", []))
    if fixed:
        rules.append({"when": {}, "set": fixed})
    defaults = Recipe().flat()
    keys = {k: v for k, v in base.flat().items() if k not in defaults or defaults[k] != v}
    seeds = content.get("seeds", [base.seed])
    keys = overlay({k: v for k, v in keys.items() if k != "seed"}, content.get("base", {}))
    table = {
        "seeds": seeds,
        # Set here as well: as a rule, which applies after the axes, a model or method resets the axes' parameters.
        "base": overlay(keys, {k: v for k, v in fixed.items() if k in ("model", "method")}),
        # A method resets earlier parameters, so axes over parameters come last.
        "axes": dict(sorted(axes.items(), key=lambda axis: axis[0].startswith(("model.", "method.")))),
        "rules": rules,
        "skip": content.get("skip", []),
    }
    for condition in [*(rule["when"] for rule in rules), *content.get("skip", [])]:
        for axis, wanted in condition.items():  # choices may be written as plain values
            condition[axis] = [choice_label(choice) for choice in (wanted if isinstance(wanted, list) else [wanted])]
    check_layers(str(source), table, _CHOICE_KEYS)
    _check_stages(table)
    name = Path(source).stem
    sweep = Table(name, title or f"{name}: {' × '.join(axes) or 'seeds'}", table, base.folders)
    cells = sweep.cells()
    for key in content.get("base", {}):
        if key.startswith(("model.", "method.")) and not any(key in cell.keys for cell in cells):
            raise BadInput(f"{source}, base: {key} has no effect: the choices name others; use `rules`")
    return sweep


def axis_choices(key: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the choices of an axis over one recipe key, each with the keys that it sets.

    Raises:
        BadInput: There is no value, or a duplicate.

    >>> axis_choices("method", ["fedavg", "fedprox(mu=0.1)"])["fedprox(mu=0.1)"]
    {'set': {'method': 'fedprox', 'method.mu': 0.1}}
    """
    choices: dict[str, Any] = {}
    for value in rejoin(list(values)):
        value = rejoin(list(value)) if isinstance(value, list | tuple) else value
        label = choice_label(value)
        if label in choices:
            raise BadInput(f"{key}: {value!r} is there twice; each value of an axis makes its own cell")
        choices[label] = {"set": expand_calls({key: value})}
    if not choices:
        raise BadInput(f"{key}: the axis is empty; give at least one value, such as {key}=[a,b]")
    return choices


def _refuse_twice(axis: str, choices: Mapping[str, Any], given: Set[str]) -> None:
    """Check that no choice of an axis sets a key that is given elsewhere: cell names would be wrong."""
    for choice, layer in choices.items():
        if twice := given & _set(layer).keys():
            raise BadInput(f"{axis}: {choice} sets {min(twice)}, which is given as well; give one of them")


def _set(layer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the recipe keys that a choice sets."""
    return expand_calls((layer or {}).get("set", {}))


def _is_axis(key: str, value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return key not in _LISTS or any(isinstance(item, list | tuple) for item in value)


def plain(value: Any) -> Any:
    """Convert NumPy numbers, arrays and ranges to plain numbers and lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def _refuse_objects(key: str, value: Any) -> None:
    """Check that a value can be stored in a recipe: the runs of a sweep are recipes."""
    if isinstance(value, list):
        for item in value:
            _refuse_objects(key, item)
    elif not isinstance(value, str | int | float | None):
        raise BadInput(
            f"{key}: {value!r} is an object, and a sweep writes its values into recipes: give a name, such as "
            "'fedavg', 'fedprox(mu=0.1)' or 'mine.py:FedMine'"
        )


def choice_label(value: Any) -> str:
    """Return the label of a value as a choice.

    >>> [choice_label(value) for value in ("fedavg", 0.1, None, ["ccvr", "ridge"], [])]
    ['fedavg', '0.1', 'null', 'ccvr+ridge', 'none']
    """
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cell_name(choices: Mapping[str, str]) -> str:
    """Return a cell's name from its choices; most choices are prefixed by the name of their key.

    >>> cell_name({"method": "fedprox", "method.mu": "0.1", "data": "mild"})
    'fedprox mu=0.1 mild'
    """
    parts = []
    for axis, choice in choices.items():
        parts.append(f"{axis.removeprefix('method.')}={choice}" if is_key(axis) and axis not in _BARE else choice)
    return " ".join(parts) or "base"


def _check_key(key: str) -> None:
    """Check that a key is a recipe key other than a seed."""
    if key in ("seed", "seeds"):
        raise BadInput(f"{key}: a sweep runs every cell with the same seeds; give them with --seeds (seeds= in Python)")
    if not is_key(key):
        raise unknown_key(key)


def _check_stages(table: Mapping[str, Any]) -> None:
    """Check that every stage with parameters is used by a cell."""
    layers = [layer or {} for choices in table["axes"].values() for layer in choices.values()]
    layers += table["rules"]
    key_sets = [table["base"], *(layer.get("set", {}) for layer in layers)]
    stages = {layer["stage"] for layer in layers if "stage" in layer}
    for keys in key_sets:
        names = keys.get("stages", [])
        stages |= {read_call(str(name), "stage").name for name in (names if isinstance(names, list) else [])}
    for key in (key for keys in key_sets for key in keys if key.startswith("stage.")):
        name = key.removeprefix("stage.").rpartition(".")[0]
        if name not in stages:
            raise unknown("stage", name, stages) if stages else BadInput(f"{key}: no cell has the stage {name!r}")


# -- files ------------------------------------------------------------------------------------------
def _read(source: str | Path) -> tuple[dict[str, Any], Recipe, str]:
    """Return a sweep's content, its base recipe and its title; the content of a plain recipe is empty."""
    path = Path(source)
    if path.suffix not in recipes.SUFFIXES or not path.is_file():
        return {}, recipes.load(source), ""
    text = read_text(path)
    content = read_yaml(text, str(source))
    if not isinstance(content, dict):
        raise BadInput(f"{source}: neither a recipe nor a sweep: write lines 'key: value', with `axes` for a sweep")
    if "axes" not in content:
        if sweep_only := sorted(content.keys() & (_SWEEP_KEYS - {"seeds", FOLDERS})):
            raise BadInput(f"{source}: a sweep's file (it has {sweep_only[0]!r}) needs the key 'axes'")
        return {}, recipes.load(source), ""
    if "paper" in content:
        raise BadInput(f"{source}: a paper's table; run those by name with fedhead reproduce, or remove `paper`")
    recorded = content.pop("title", "") if "digest" in content else ""  # sweep.yaml of a sweep's folder
    content.pop("digest", None)
    refuse_unknown(str(source), content, _SWEEP_KEYS)
    _check_kinds(str(source), content)
    axes = _by_text(f"{source}, axes", content["axes"])
    content["axes"] = {axis: _choices(source, axis, given) for axis, given in axes.items()}
    here = path.resolve().parent
    name = content.get("recipe")
    base = Recipe() if name is None else recipes.load(_beside(here, name))
    first = text.partition("\n")[0]
    title = first.lstrip("# ") if first.startswith("#") else str(recorded)
    try:
        places = with_written([here], content.pop(FOLDERS, []))
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    return content, Recipe.from_flat(base.flat(), (*places, *base.folders)), title


def _beside(folder: Path, recipe: str) -> str | Path:
    return folder / recipe if (folder / recipe).is_file() else recipe


def _choices(source: str | Path, axis: str, given: Any) -> dict[str, Any]:
    if isinstance(given, list):
        _check_key(axis)
        return axis_choices(axis, given)
    if not isinstance(given, dict) or not given:
        raise BadInput(f"{source}, axis {axis}: give a list of values, or choices with what each sets")
    for choice, layer in given.items():
        _check_layer(f"{source}, {axis} {choice}", {} if layer is None else layer)
    return _by_text(f"{source}, axis {axis}", given)


def _by_text(title: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Convert keys to strings; raise an error for both 1 and "1", which YAML distinguishes."""
    names = [str(name) for name in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{title}: {twice[0]} is there twice, as a number and as text; rename one")
    return dict(zip(names, given.values(), strict=True))


def _check_kinds(source: str, content: Mapping[str, Any]) -> None:
    _check_values(source, content)
    for rule in content.get("rules", []):
        _check_layer(f"{source}, a rule", rule)
        if "when" not in rule:
            raise BadInput(f"{source}: the rule {rule!r} lacks `when`; settings of all cells belong to `base`")
    for condition in content.get("skip", []):
        _check_layer(f"{source}, skip", {"when": condition})
    for key in content.get("base", {}):
        _check_key(str(key))
    check_seeds(f"{source}, seeds", content.get("seeds", 1))


def _check_layer(where: str, layer: Any) -> None:
    _check_values(where, check(where, layer, _Keys))
    for key in layer.get("set", {}):
        _check_key(str(key))
    check_seeds(f"{where}, seeds", layer.get("seeds", 1))


def _check_values(where: str, content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        check(f"{where}, {key}", value, _KINDS.get(key, Any))


def check_seeds(where: str, seeds: Any) -> None:
    """Check that seeds are a positive number or a list without duplicates.

    Raises:
        BadInput: Otherwise, naming the location.
    """
    if type(seeds) is int and seeds >= 1:
        return
    listed = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if listed and len(set(seeds)) == len(seeds):
        return
    raise BadInput(f"{where}: {seeds!r} is neither how many (3) nor a list of different ones ([7, 8, 9])")
