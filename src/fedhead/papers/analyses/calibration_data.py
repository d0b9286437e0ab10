"""Analyses of the amount of data for calibration: real features (CCVR, Fig. 4) and virtual ones (Fig. 7 and 14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fedhead.algorithm.stage import Stage
from fedhead.papers.analyses import plots
from fedhead.papers.analyses.ccvr import own_stage
from fedhead.papers.analyses.client_models import global_accuracy
from fedhead.papers.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.runs.reopen import Trained
from fedhead.stages.ccvr import CCVR
from fedhead.stages.recalibrate import Recalibrate

_SHARES = (1 / 128, 1 / 32, 1 / 8, 1 / 4, 1 / 2, 1.0)
_VIRTUAL = (50, 100, 500, 1000, 2000)  # M_c of the paper's Table 3


@analysis("amounts", "accuracy after calibration with parts of all real data (CCVR, Fig. 4)")
def analyze_amounts(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Calibrate with increasing numbers of real features per class, up to `samples` or all."""

    def stages(run: Trained) -> dict[int, Stage]:
        largest = int(run.simulation.clients.counts.sum(dim=0).max())
        most = min(options.samples or largest, largest)
        stage = own_stage(run, Recalibrate)
        counts = dict.fromkeys(max(1, round(share * most)) for share in _SHARES)
        return {n: dataclasses.replace(stage, per_class=n) for n in counts}

    return _calibrated(runs, options, stages, "real features per class")


@analysis("virtual", "accuracy after CCVR with different numbers of virtual features (CCVR, Fig. 7, 14)")
def analyze_virtual(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Run CCVR with increasing numbers of virtual features per class, up to `samples` or 2000."""

    def stages(run: Trained) -> dict[int, Stage]:
        most = options.samples or _VIRTUAL[-1]
        stage = own_stage(run, CCVR)
        counts = dict.fromkeys([*(n for n in _VIRTUAL if n < most), most])
        return {n: dataclasses.replace(stage, samples=n) for n in counts}

    return _calibrated(runs, options, stages, "virtual features per class")


def _calibrated(
    runs: Sequence[Trained],
    options: AnalysisOptions,
    stages: Callable[[Trained], dict[int, Stage]],
    xlabel: str,
) -> AnalysisReport:
    numbers: dict[str, Any] = {}
    for name, run in by_label(runs).items():
        before, method = global_accuracy(run.simulation), run.simulation.experiment.method
        accuracies = {n: run.run(stage.on_method(method)).accuracy for n, stage in stages(run).items()}
        numbers[name] = {"before": before, "features": list(accuracies), "accuracy": list(accuracies.values())}
    curves = {name: (values["features"], values["accuracy"]) for name, values in numbers.items()}
    earlier = {name: values["before"] for name, values in numbers.items()}
    return AnalysisReport(numbers, {"": plots.amounts(curves, earlier, xlabel, options.width)})
