"""A recipe of several runs: one per seed, or one per client that is left out; and their means."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput, Diverged, FedheadError
from fedhead.metrics.records import Row
from fedhead.recipes import leave_one_out
from fedhead.recipes import recipe_data as experiment_data
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import Compute, execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import DamagedRun, OtherRecipe

MEANS = ("accuracy", "accuracy_mean", "personal")  # results that are averaged over seeds


def seed_folders(recipe: Recipe, out: Path, data: str | Path | None = None) -> dict[Path, Recipe]:
    """Return the run folder of each seed, or of each client that is left out, with its recipe; of one run `out` itself.

    Args:
        recipe: What to run.
        out: The run folder, or the folder that holds them.
        data: The folder of the data sets, which are read where each client is left out in turn; None: the default one.
    """
    if recipe.test == leave_one_out.ALL:
        if recipe.seeds:
            raise BadInput(f"seeds: test={leave_one_out.ALL} is several runs already; give one seed")
        return {path: one for path, (one, _) in _left_out(recipe, out, data).items()}
    if not recipe.seeds:
        return {out: recipe}
    return {out / f"seed{seed}": recipe.override([f"seed={seed}"]) for seed in recipe.seeds}


def _left_out(recipe: Recipe, out: Path, data: str | Path | None) -> dict[Path, tuple[Recipe, str]]:
    """Return the run folder of each client that is left out in turn, with its recipe and the client's name."""
    whole = experiment_data.federation(recipe.override(["test=null"]), data)
    each = leave_one_out.recipes(recipe, len(whole))
    names = whole.client_names or tuple(each)
    return {out / name: (one, client) for (name, one), client in zip(each.items(), names, strict=True)}


def execute_seeds(
    recipe: Recipe,
    out: Path,
    settings: Compute,
    execute: Callable[..., Row] = execute,
    *,
    resume: bool = False,
    on_row: Callable[[Recipe, Row], None],
) -> Row:
    """Run a recipe once for each of its seeds, each in its own folder.

    A seed whose run diverges does not stop the others, nor does one whose folder is damaged; they are named under
    `diverged` and `damaged` and enter no mean.

    Args:
        recipe: What to run; one without a list of seeds is run once, in `out` itself.
        out: The run folder, or the folder that holds `seed0`, `seed1` and so on.
        settings: How and where to compute.
        execute: What runs one recipe, in this process (`experiment.run.execute`) or elsewhere, called alike.
        resume: Go on with runs that were stopped.
        on_row: Called with a run's recipe and the record of each of its rounds.

    Returns:
        The result of the run; of several, the means and deviations of those that ended, with the single results under
        `runs`, each with the name of the client that it left out (`left_out`), if any.

    Raises:
        FedheadError: If no seed has a result; as `raise_failed` does.
    """
    left_out = _left_out(recipe, out, settings.data) if recipe.test == leave_one_out.ALL and not recipe.seeds else {}
    folders = {path: one for path, (one, _) in left_out.items()} or seed_folders(recipe, out, settings.data)
    if list(folders) == [out]:
        return execute(recipe, out, settings, resume=resume, on_row=partial(on_row, recipe))
    if resume:
        _refuse_other_recipes(folders)
    results: dict[Path, Row] = {}
    failed: dict[str, dict[str, str]] = {"diverged": {}, "damaged": {}}
    for folder, one in folders.items():
        try:
            found = execute(one, folder, settings, resume=resume, on_row=partial(on_row, one))
            results[folder] = {**found, "left_out": left_out[folder][1]} if left_out else found
        except (Diverged, DamagedRun) as error:
            failed["diverged" if isinstance(error, Diverged) else "damaged"][which(one)] = str(error)
    if not results:
        raise_failed(**failed)
    seconds = sum(row["seconds"] for row in results.values())
    return {"run": str(out), **averaged(list(results.values())), "seconds": seconds, **failed}


def raise_failed(diverged: Mapping[str, str], damaged: Mapping[str, str]) -> None:
    """Name the runs that are in no mean, if there are any.

    Args:
        diverged: Why runs diverged, by their seeds.
        damaged: What is wrong with the folders of runs, and what to do, by their seeds.

    Raises:
        Diverged: If no folder is damaged.
        FedheadError: If one is.
    """
    said = [f"seed {which} diverged and is in no mean: {why}" for which, why in diverged.items()]
    said += [f"seed {which} is in no mean: {why}" for which, why in damaged.items()]
    if damaged:
        raise FedheadError(f"{'; '.join(said)}; fix it, and the same command runs what failed again")
    if said:
        raise Diverged("; ".join(said))


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


def which(recipe: Recipe) -> str:
    """Return what tells a run from the others: its seed, and the client that it leaves out, if any."""
    client = leave_one_out.left_out(recipe)
    return str(recipe.seed) if client is None else f"{recipe.seed} without client {client}"


def averaged(results: Sequence[Row]) -> Row:
    """Return the means and deviations over runs that differ only in their seed, and the runs themselves."""
    stages = {
        name: {metric: _mean([r["stages"][name][metric] for r in results]) for metric in ("accuracy", "personal")}
        for name in results[0]["stages"]
    }
    return {
        **{name: _mean([r[name] for r in results]) for name in MEANS},
        "deviation": {name: deviation([r[name] for r in results]) for name in MEANS},
        "metrics": {name: _mean([r["metrics"][name] for r in results]) for name in results[0].get("metrics") or {}},
        "stages": stages,
        **{name: sum(r[name] for r in results) for name in ("bytes_up", "bytes_down")},
        "preparing": sum(r.get("preparing") or 0.0 for r in results),
        "seed": [r["seed"] for r in results],
        "runs": list(results),
    }


def _mean(values: Sequence[Any]) -> float | None:
    there = [v for v in values if v is not None]
    return statistics.fmean(there) if there else None


def deviation(values: Sequence[Any]) -> float | None:
    """Return the sample standard deviation (n − 1) of the values that are there; None for fewer than two."""
    there = [v for v in values if v is not None]
    return statistics.stdev(there) if len(there) > 1 else None
