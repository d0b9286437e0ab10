"""Figures of a study, drawn by Optuna: the best value so far, slices, parallel coordinates and importance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedhead.core.system.errors import BadInput
from fedhead.report import style
from fedhead.studies.tune.study import load_study, optuna

FIGURES = {
    "best_so_far": "plot_optimization_history",
    "slices": "plot_slice",
    "parallel_coordinates": "plot_parallel_coordinate",
    "importance": "plot_param_importances",
}


def save(folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Draw all figures of a study and save them in its folder.

    Args:
        folder: The study's folder.
        formats: Endings of the files.

    Returns:
        The files.

    Raises:
        BadInput: There is no study, or fewer than two of its trials are complete.
    """
    from matplotlib import pyplot

    study, files = load_study(folder), list[Path]()
    complete = sum(trial.state.name == "COMPLETE" for trial in study.trials)
    if complete < 2:
        raise BadInput(f"{folder}: figures need at least two complete trials, there are {complete}")
    for name, function in FIGURES.items():
        with warnings.catch_warnings(), pyplot.rc_context():
            warnings.simplefilter("ignore")  # Optuna calls its figures experimental
            axes = getattr(optuna().visualization.matplotlib, function)(study)
            figure = np.ravel(axes)[0].figure
            for ending in formats:
                files.append(folder / f"{name}.{ending}")
                style.save(figure, files[-1])
            pyplot.close(figure)
    return files
