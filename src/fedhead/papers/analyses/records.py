"""Analyses of the records in run folders, without data: learning curves, splits and steps of fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedhead.core.system.errors import BadInput, require, unknown
from fedhead.core.training import per_client_counts
from fedhead.loggers.base import numbers as record_numbers
from fedhead.papers.analyses import plots as analysis_plots
from fedhead.papers.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.recipes import experiment as build
from fedhead.report.figures import plots
from fedhead.report.histories import aligned, values_by_round
from fedhead.report.page.content import Content
from fedhead.runs.read_runs import Run


@analysis("learning", "a metric over the rounds, mean and deviation over seeds (FedETF, Fig. 4, 8)", reads="records")
def analyze_learning(runs: Sequence[Run], options: AnalysisOptions) -> AnalysisReport:
    """Plot a metric over the rounds, one line per setting; unfinished runs are separate lines."""
    entries = Content(runs).methods
    numbers: dict[str, Any] = {}
    for entry in entries:
        having = [run for run in entry.runs if values_by_round(run.rows, options.metric)]
        rounds, values = aligned([run.rows for run in having], options.metric)
        if len(rounds):
            numbers[entry.name] = {
                "seeds": [run.recipe.seed for run in having],
                "rounds": rounds.tolist(),
                "mean": values.mean(axis=0).tolist(),
            }
    if not any(values_by_round(run.rows, options.metric) for run in runs):
        known = {name for run in runs for row in run.rows for name in record_numbers(row)}
        raise unknown("metric of these runs", options.metric, known)
    return AnalysisReport(numbers, {"": plots.curves(entries, options.metric, options.width)})


@analysis(
    "curves",
    "accuracy of the clients over local epochs, mean and deviation (FedClassAvg, Fig. 4 to 7)",
    reads="records",
)
def analyze_curves(runs: Sequence[Run], options: AnalysisOptions) -> AnalysisReport:
    """Plot learning curves over local epochs, for a fair comparison of methods with different epochs per round."""
    numbers: dict[str, Any] = {}
    for name, run in by_label(runs).items():
        rows = [row for row in run.rows if row.get("clients")]
        require(rows, f"{run.path} has no clients' accuracies: set client_test in the recipe, such as matched")
        local = build.local(run.recipe)
        require(local.steps is None, f"{run.path} counts local steps, and the curves are over local epochs")
        each = [[a for a in row["clients"] if a is not None] for row in rows]
        numbers[name] = {
            "epochs": [row["round"] * per_client_counts.mean(local.epochs) for row in rows],
            "mean": [float(np.mean(a)) for a in each],
            "deviation": [float(np.std(a, ddof=1)) if len(a) > 1 else 0.0 for a in each],
        }
    return AnalysisReport(numbers, {"": analysis_plots.epoch_curves(numbers, options.width)})


@analysis(
    "labels",
    "how many samples of each class every client holds (CCVR, Fig. 15; FedETF, Fig. 7; FedClassAvg, Fig. 2, 3)",
    reads="records",
)
def analyze_labels(runs: Sequence[Run], options: AnalysisOptions) -> AnalysisReport:
    """Plot the label distribution over clients, one figure per run."""
    figures, numbers = {}, {}
    for i, (name, run) in enumerate(by_label(runs).items()):
        if run.counts is None:
            raise BadInput(f"{run.path} was stopped before its data was split: resume it first")
        numbers[name] = {"counts": run.counts.tolist()}
        figures["" if i == 0 else f"-{i + 1}"] = plots.bubbles(run.counts, run.class_names, name, options.width)
    return AnalysisReport(numbers, figures)


@analysis("finetune", "personal accuracy after each step of fine-tuning (FedETF, Fig. 6b)", reads="records")
def analyze_finetuning(runs: Sequence[Run], options: AnalysisOptions) -> AnalysisReport:
    """Plot the accuracy after each step of a stage, one line per run and stage."""
    numbers: dict[str, Any] = {}
    for name, run in by_label(runs).items():
        for stage, row in ((run.result or {}).get("stages") or {}).items():
            if row.get("steps"):
                numbers[f"{name} + {stage}"] = {
                    step: value for step, value in row["steps"].items() if value is not None
                }
    require(numbers, "no run has a stage that records its steps: add stages=[finetune_etf] with client_test")
    return AnalysisReport(numbers, {"": analysis_plots.steps(numbers, options.width)})
