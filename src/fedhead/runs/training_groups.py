"""Trainings of tables and sweeps: which of them run together, and how a group of them is run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedhead.core.system.errors import BadInput, Diverged
from fedhead.core.system.log import warn_once
from fedhead.executors.stack.stack import default_size
from fedhead.recipes.experiment import Experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs.failures import describe_error, raise_if_fatal
from fedhead.runs.run import Compute, execute, execute_together, stack_is_best
from fedhead.runs.run_folder import RunFolder

_SPLITS = ("seed", "seeds", "partition", "partition_seed")
_STAGES = ("stages", "stage.")


def validate(recipes: Mapping[str, Recipe]) -> None:
    """Refuse recipes that can't be run before any is, naming the first; equal ones are checked once.

    Args:
        recipes: The recipes by the names of their cells.

    Raises:
        BadInput: A recipe can't be built.
    """
    checked: list[Recipe] = []
    for name, recipe in recipes.items():
        if recipe in checked:
            continue
        try:
            Experiment.from_recipe(recipe)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from error
        checked.append(recipe)


def group_trainings(
    recipes: Mapping[Path, Recipe], together: bool | None, device: torch.device
) -> list[tuple[int, list[Path]]]:
    """Return the runs with the number of the first: one after another, or in groups that may train together.

    Runs that differ in nothing but their seed and their split do the same work, whichever cells they belong to; a
    group has as many of them as a stack holds clients. Groups come in the order of their first runs.

    Args:
        recipes: The runs by their folders.
        together: Whether runs train together; None: on a GPU.
        device: Where they are to train.
    """
    groups: list[list[Path]] = []
    open_groups: dict[str | Path, list[Path]] = {}
    joined = device.type == "cuda" if together is None else together
    for path, recipe in recipes.items():
        key = _without(recipe, _SPLITS + _STAGES) if joined else path
        mine = open_groups.get(key)
        if mine is None or (len(mine) + 1) * recipe.clients > default_size(device):
            groups.append(mine := [])
            open_groups[key] = mine
        mine.append(path)
    numbers = [1 + sum(map(len, groups[:index])) for index in range(len(groups))]
    return list(zip(numbers, groups, strict=True))


def training_key(recipe: Recipe) -> str:
    """Return what runs that train alike have in common: everything but their stages."""
    return _without(recipe, _STAGES)


def _without(recipe: Recipe, prefixes: tuple[str, ...]) -> str:
    return json.dumps({k: v for k, v in recipe.flat().items() if not k.startswith(prefixes)}, sort_keys=True)


def span(first: int, count: int) -> str:
    """Return the numbers of so many runs, as a line of progress has them.

    >>> span(3, 1), span(3, 4)
    ('3', '3-6')
    """
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def describe(recipes: Sequence[Recipe]) -> str:
    """Return what runs of a group train, in one line."""
    partitions = ", ".join(dict.fromkeys(r.partition for r in recipes))
    seeds = list(dict.fromkeys(str(r.seed) for r in recipes))
    splits = list(dict.fromkeys(str(r.partition_seed) for r in recipes if r.partition_seed is not None))
    drawn = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
    drawn += f" split{'s' if len(splits) > 1 else ''} {', '.join(splits)}" if splits else ""
    return f"{recipes[0].dataset} {partitions} {recipes[0].method} {drawn}"


def train(runs: Mapping[Path, Recipe], together: bool | None, settings: Compute) -> dict[Path, Exception]:
    """Run trainings that differ in their seed and split alone, as far as they are not finished.

    Returns:
        The errors of those that failed; the others are finished.

    Raises:
        OSError: Or another error that says that the disk is full or broken: no other run could be written either.
    """
    errors = dict[Path, Exception]()
    joined = train_joined(runs, together, settings)
    for path, recipe in runs.items():
        if path in joined and (reason := diverged(path)) is not None:
            errors[path] = Diverged(reason)
            continue
        try:
            train_one(path, recipe, settings)
        except Exception as error:  # a user's own code may raise anything
            raise_if_fatal(error)
            errors[path] = error
    return errors


def diverged(path: Path) -> str | None:
    """Return why a run diverged; None where it did not, is not there, or can't be read."""
    try:
        return RunFolder.open(path).diverged if RunFolder.holds_run(path) else None
    except BadInput:  # a damaged folder, which the run itself will name
        return None


def train_joined(runs: Mapping[Path, Recipe], together: bool | None, settings: Compute) -> set[Path]:
    """Train those runs of a group in one stack that can; returns which these were.

    A run that was begun with another executor is left, since it goes on with that one, alone; so is one whose settings,
    record, metrics or checkpoint's header are damaged, which it will name. Where the stack fails, each run is to be
    tried alone.

    Raises:
        OSError: Or another error after which no other run could be run either.
    """
    joint: dict[Path, Recipe] = {}
    try:
        for path in runs:
            path.parent.mkdir(parents=True, exist_ok=True)
        joint = {path: recipe for path, recipe in runs.items() if may_join(path)}
        if len(joint) < 2 or not (together or stack_is_best(next(iter(joint.values())), settings)):
            return set()
        with _own_threads():
            execute_together(list(joint.values()), list(joint), settings, resume=True)
    except Exception as error:  # a user's own code may raise anything
        raise_if_fatal(error)
        if len(joint) > 1 and not any(map(diverged, joint)):
            warn_once(f"runs that train together failed, each goes on alone: {describe_error(error)}")
    return set(joint)


def train_one(path: Path, recipe: Recipe, settings: Compute) -> None:
    """Run a training from where it stands; a finished one is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _own_threads():
        execute(recipe, path, settings, resume=True)


@contextmanager
def _own_threads() -> Iterator[None]:
    """Let a run choose its number of threads for itself alone: the next one is to round as it would alone."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def may_join(path: Path) -> bool:
    """Return whether a run can be trained in a stack from where it stands.

    The numbers of its checkpoint are not read for it: where they are damaged, the stack fails and each trains alone.
    """
    try:
        if begun_with(path) not in (None, "stack"):
            return False
        if not RunFolder.holds_run(path):
            return True
        run = RunFolder.open(path)
        last = run.checkpoint_round()
        return not last or len(run.metrics()) >= last  # without a checkpoint, its metrics are begun anew
    except BadInput:
        return False


def begun_with(path: Path) -> str | None:
    """Return the executor of an unfinished run, None where there is none yet, "" for a finished one."""
    if not RunFolder.holds_run(path):
        return None
    run = RunFolder.open(path)
    return "" if run.finished else run.environment().get("executor")
