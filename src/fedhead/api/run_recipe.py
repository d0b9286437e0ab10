"""`run_recipe`: train by a recipe in a run folder; once for each of its seeds or clients that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedhead.core.system.errors import BadInput, Diverged
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import Observer
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.recipes import leave_one_out, recipe_data
from fedhead.recipes.recipe import Recipe
from fedhead.runs import run
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import DamagedRun, OtherRecipe
from fedhead.runs.seeds import averaged, raise_failed, which

Observers = Callable[[Recipe, int, int], Sequence[Observer]]  # from a run's recipe, its number, and the number of runs


def run_recipe(
    recipe: Recipe,
    out: Path,
    compute: Compute | None = None,
    *,
    resume: bool = False,
    over_flower: bool = False,
    loggers: Sequence[Logger] = (),
    observers: Observers = lambda recipe, number, runs: (),
) -> Row:
    """Run a recipe once, or once for each of its seeds or clients that are left out, each in its own folder.

    A run that diverges does not stop the others, nor does one whose folder is damaged; they are named under `diverged`
    and `damaged` and enter no mean.

    Args:
        recipe: What to run.
        out: The run folder; of several runs, the folder that holds theirs (`seed0`, `site0` and so on).
        compute: Where and how to compute.
        resume: Continue interrupted runs; finished ones are left as they are.
        over_flower: Train with one process per client, on Flower.
        loggers: Loggers besides those of the recipe.
        observers: Returns the observers of a run.

    Returns:
        The result of the run; of several, the means and deviations of those that ended, with the single results under
        `runs`, each with the name of the client that it left out (`left_out`), if any.

    Raises:
        FedheadError: If no run has a result; as `raise_failed` does.
    """
    compute = compute or Compute()
    execute = run.execute
    if over_flower:
        from fedhead.deploy.local_run import execute
    planned = _planned(recipe, out, compute)
    several = list(planned) != [out]
    watching = {path: observers(one.recipe, number, len(planned)) for number, (path, one) in enumerate(planned.items())}
    if not several:
        return execute(recipe, out, compute, resume=resume, observers=watching[out], loggers=loggers)
    folders = {path: one.recipe for path, one in planned.items()}
    if resume:
        _refuse_other_recipes(folders)
    results: dict[Path, Row] = {}
    failed: dict[str, dict[str, str]] = {"diverged": {}, "damaged": {}}
    for folder, one in folders.items():
        try:
            result = execute(one, folder, compute, resume=resume, observers=watching[folder], loggers=loggers)
            name = planned[folder].left_out
            results[folder] = result if name is None else {**result, "left_out": name}
        except (Diverged, DamagedRun) as error:
            failed["diverged" if isinstance(error, Diverged) else "damaged"][which(one)] = str(error)
    if not results:
        raise_failed(**failed)
    seconds = sum(one["seconds"] for one in results.values())
    return {"run": str(out), **averaged(list(results.values())), "seconds": seconds, **failed}


class _Planned(NamedTuple):
    """One run of a recipe."""

    recipe: Recipe
    left_out: str | None = None  # the name of the client that it leaves out


def _planned(recipe: Recipe, out: Path, compute: Compute) -> dict[Path, _Planned]:
    """Return the run of each seed, or of each client that is left out, by its folder; of one run `out` itself."""
    if recipe.test == leave_one_out.ALL:
        if recipe.seeds:
            raise BadInput(f"seeds: test={leave_one_out.ALL} is several runs already; give one seed")
        whole = recipe_data.federation(recipe.override(["test=null"]), compute.data)  # how many clients there are
        each = leave_one_out.recipes(recipe, len(whole))
        names = whole.client_names or tuple(each)
        return {out / name: _Planned(one, client) for (name, one), client in zip(each.items(), names, strict=True)}
    if not recipe.seeds:
        return {out: _Planned(recipe)}
    return {out / f"seed{seed}": _Planned(recipe.override([f"seed={seed}"])) for seed in recipe.seeds}


def _refuse_other_recipes(folders: Mapping[Path, Recipe]) -> None:
    """Refuse a recipe with which a run was not begun before any seed is run: what was asked for is wrong."""
    for path, recipe in folders.items():
        try:
            if RunFolder.holds_run(path):
                RunFolder.open(path, recipe)
        except OtherRecipe:
            raise
        except DamagedRun:  # which the run itself will name
            continue
