"""A recipe with a list of seeds: one run per seed, and their means."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from fedhead.engine.metrics import Row
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run import Settings, execute, execute_together


def execute_seeds(
    recipe: Recipe,
    out: Path,
    settings: Settings,
    execute: Callable[..., Row] = execute,
    *,
    resume: bool = False,
    together: bool = False,
    on_row: Callable[[Row], None],
) -> Row:
    """Run a recipe once for each of its seeds, each in its own folder.

    Args:
        recipe: What to run; one without a list of seeds is run once, in `out` itself.
        out: The run folder, or the folder that holds `seed0`, `seed1` and so on.
        settings: How and where to compute.
        execute: What runs one recipe, in this process (`experiment.run.execute`) or elsewhere, called alike.
        resume: Go on with runs that were stopped.
        together: Train all seeds in one stack.
        on_row: Called with the record of every round.

    Returns:
        The result of the run; of several, their means, with the single results under `runs`.
    """
    seeds = [recipe.override([f"seed={seed}"]) for seed in recipe.seeds]
    folders = [out / f"seed{r.seed}" for r in seeds]
    if not seeds:
        return execute(recipe, out, settings, resume=resume, on_row=on_row)
    if together:
        results = execute_together(seeds, folders, settings, resume=resume, on_row=on_row)
    else:
        pairs = zip(seeds, folders, strict=True)
        results = [execute(r, folder, settings, resume=resume, on_row=on_row) for r, folder in pairs]
    means = {name: _mean([r[name] for r in results]) for name in ("accuracy", "accuracy_mean", "personal")}
    totals = {name: sum(r[name] for r in results) for name in ("bytes_up", "bytes_down", "seconds")}
    totals["preparing"] = max(r.get("preparing") or 0.0 for r in results)  # runs that train together share it
    stages = {
        name: {metric: _mean([r["stages"][name][metric] for r in results]) for metric in ("accuracy", "personal")}
        for name in results[0]["stages"]
    }
    metrics = {name: _mean([r["metrics"][name] for r in results]) for name in results[0].get("metrics") or {}}
    return {
        "run": str(out),
        **means,
        "metrics": metrics,
        "stages": stages,
        **totals,
        "seed": list(recipe.seeds),
        "runs": results,
    }


def _mean(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return statistics.fmean(there) if there else None
