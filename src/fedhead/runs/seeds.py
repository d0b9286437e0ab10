"""A recipe of several runs: one per seed, or one per client that is left out; and their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedhead.core.system.errors import Diverged, FedheadError
from fedhead.metrics.averages import mean_and_deviation
from fedhead.metrics.records import Row
from fedhead.recipes import leave_one_out
from fedhead.recipes.recipe import Recipe

MEANS = ("accuracy", "accuracy_mean", "personal")  # results that are averaged over seeds


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


def which(recipe: Recipe) -> str:
    """Return what tells a run from the others: its seed, and the client that it leaves out, if any."""
    client = leave_one_out.left_out(recipe)
    return str(recipe.seed) if client is None else f"{recipe.seed} without client {client}"


def averaged(results: Sequence[Row]) -> Row:
    """Return the means and deviations over runs that differ only in their seed, and the runs themselves."""
    stages = {
        name: {
            metric: mean_and_deviation(r["stages"][name][metric] for r in results)[0]
            for metric in ("accuracy", "personal")
        }
        for name in results[0]["stages"]
    }
    return {
        **{name: mean_and_deviation(r[name] for r in results)[0] for name in MEANS},
        "deviation": {name: mean_and_deviation(r[name] for r in results)[1] for name in MEANS},
        "metrics": {
            name: mean_and_deviation(r["metrics"][name] for r in results)[0] for name in results[0].get("metrics") or {}
        },
        "stages": stages,
        **{name: sum(r[name] for r in results) for name in ("bytes_up", "bytes_down")},
        "preparing": sum(r.get("preparing") or 0.0 for r in results),
        "seed": [r["seed"] for r in results],
        "runs": list(results),
    }
