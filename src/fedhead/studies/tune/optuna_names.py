"""Optuna, where it is installed, and the names of its samplers and pruners."""

from __future__ import annotations

from typing import Any

from fedhead.core.system.errors import BadInput


def optuna() -> Any:
    """Return the package Optuna, or raise `BadInput` where it is not installed."""
    try:
        import optuna as found
    except ImportError as error:
        raise BadInput(f"tuning needs Optuna ({error}): pip install 'fedhead[tune]'") from error
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def samplers(found: Any) -> dict[str, Any]:
    """Return how the values of a trial are chosen, by name; each is called with a seed.

    Args:
        found: The package Optuna.
    """
    return {
        "tpe": lambda seed: found.samplers.TPESampler(seed=seed, multivariate=True),
        "gp": lambda seed: found.samplers.GPSampler(seed=seed),
        "random": lambda seed: found.samplers.RandomSampler(seed=seed),
    }


def pruners(found: Any) -> dict[str, Any]:
    """Return which trials end early, by name.

    Args:
        found: The package Optuna.
    """
    return {
        "median": lambda: found.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
        "halving": found.pruners.SuccessiveHalvingPruner,
        "none": found.pruners.NopPruner,
    }
