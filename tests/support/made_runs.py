"""Run folders with made-up numbers, written by the code that records real runs, fast enough to make many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhead.data.federation.federation import Federation
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder

VERSIONS = {"python": "3.11.7", "fedhead": "0.1.0", "torch": "2.13.0"}


STAGE = {"accuracy": None, "personal": None, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0}  # of result.json
FINAL = {**STAGE, "run": "", "metrics": {}, "stages": {}}


def make_run(
    path: Path,
    recipe: Recipe,
    *,
    best: float = 90.0,
    done: int | None = None,
    classes: int = 10,
    names: Sequence[str] | None = None,
    samples: int = 2000,
    finish: bool = True,
) -> RunFolder:
    """Write a run whose accuracy rises to `best`; with `done`, one that was stopped after so many rounds."""
    rng = np.random.default_rng([recipe.seed, int(best * 10), len(recipe.method)])
    y = np.arange(samples) % classes
    federation = Federation.from_arrays(
        np.zeros((samples, 2)), y, recipe.partition, recipe.clients, seed=recipe.seed, class_names=names
    )
    folder = RunFolder.create(path, recipe)
    folder.save_split(federation)
    folder.save_environment({"versions": VERSIONS, "executor": "stack", "device": "cpu", "precision": "fp32"})
    rounds = recipe.rounds if done is None else done
    row: dict[str, Any] = {}
    with folder.locked():
        for number in range(1, rounds + 1):
            accuracy = best - (best - 10) * float(np.exp(-number / 6)) + float(rng.normal(0, 0.8))
            row = measured(accuracy, recipe.clients, classes, rng)
            took_part = rng.permutation(recipe.clients)[: max(1, int(recipe.clients * recipe.participation))]
            losses = {str(k): float(3 * np.exp(-number / 5) + rng.random() / 5) for k in sorted(took_part)}
            row |= {"participants": len(losses), "client_train_loss": losses, "lr": recipe.lr}
            row |= {"train_loss": float(np.mean(list(losses.values()))), "seconds": 0.5 + 0.1 * float(rng.random())}
            folder.record({"round": number, **row, "bytes_up": 220_000, "bytes_down": 220_000})
    if done is None and finish:
        stages = {
            name: {
                **measured(min(99.0, best + 4 + float(rng.normal(0, 0.5))), recipe.clients, classes, rng),
                "confusion": confusion(best + 4, classes, rng),
                "bytes_up": 500_000,
                "bytes_down": 220_000,
                "seconds": 1.5,
            }
            for name in recipe.stages
        }
        totals = {"bytes_up": 220_000 * rounds, "bytes_down": 220_000 * rounds, "seconds": 0.55 * rounds}
        folder.finish(
            {
                **FINAL,
                **row,
                **totals,
                "confusion": confusion(best, classes, rng),
                "compile_seconds": 2.0,
                "stages": stages,
            }
        )
    return folder


def measured(accuracy: float, clients: int, classes: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what one evaluation records."""
    each = np.clip(accuracy + rng.normal(0, 12, clients), 0, 100).round(3).tolist()
    return {
        "accuracy": accuracy,
        "test_loss": 3 * (1 - accuracy / 100),
        "per_class": np.clip(accuracy + rng.normal(0, 10, classes), 0, 100).round(3).tolist(),
        "metrics": {"f1": accuracy / 100 - 0.01},
        "personal": float(np.mean(each)),
        "clients": each,
    }


def confusion(accuracy: float, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Return a confusion matrix of 50 samples per class."""
    right = min(accuracy, 98.0) / 100
    found = []
    for c in range(classes):
        weights = rng.random(classes) ** 4
        weights[c] = 0
        shares = weights / weights.sum() * (1 - right)
        shares[c] = right
        found.append(rng.multinomial(50, shares / shares.sum()).tolist())
    return found


METHODS = {"fedavg": 0.0, "fedprox": 1.0, "moon": 2.0, "scaffold": -3.0, "fedetf": 4.0}
ALPHAS = {0.05: 60.0, 0.1: 70.0, 0.5: 85.0, 5.0: 92.0}


def make_sweep(folder: Path, rounds: int = 40, seeds: int = 3) -> Path:
    """Write runs of 5 methods over 4 partitions and some seeds: 60 runs by default."""
    for method, more in METHODS.items():
        for alpha, level in ALPHAS.items():
            for seed in range(seeds):
                stages = ("ccvr",) if method in ("fedavg", "fedprox") else ()
                recipe = Recipe(
                    dataset="digits",
                    method=method,
                    partition=f"dirichlet({alpha})",
                    seed=seed,
                    rounds=rounds,
                    stages=stages,
                    clients=10,
                )
                make_run(folder / f"{method}-{alpha}-{seed}", recipe, best=level + more + seed / 2)
    return folder
