"""Analyses of the classifier's geometry: neural collapse over the rounds, and the clients' classifiers (FedETF)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedhead.engine.rounds.rounds import train_round
from fedhead.papers.analyses import collapse, embed, plots
from fedhead.papers.analyses.client_models import check_rounds, global_accuracy
from fedhead.papers.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.runs.reopen import Trained, fresh


@analysis("collapse", "neural collapse and the clients' consistency, in chosen rounds and at the end (FedETF, Fig. 5)")
def analyze_collapse(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Measure NC1 to NC3 and consistency of clients; earlier rounds are repeated, with identical results."""
    numbers = {name: collapse_over_rounds(run, options.rounds) for name, run in by_label(runs).items()}
    return AnalysisReport(numbers, {"": plots.collapse(numbers, options.width)})


def collapse_over_rounds(run: Trained, rounds: Sequence[int]) -> list[dict[str, float]]:
    """Return the metrics after each selected round and after the last."""
    check_rounds(rounds, run.round, run.round)
    simulation, rows = fresh(run), []
    early = {r for r in rounds if r < run.round}
    for number in range(1, max(early, default=0) + 1):
        train_round(simulation.using(run.executor), number)
        if number in early:
            rows.append(collapse.round_metrics(simulation, run.executor, number))
    return [*rows, collapse.round_metrics(run.simulation, run.executor, run.round)]


@analysis("classifiers", "cosines of the clients' classifiers, and their vectors in the plane (FedETF, Fig. 1)")
def analyze_classifiers(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Compare the classifiers after one more local round by pairwise cosines, and embed their vectors with t-SNE."""
    numbers: dict[str, Any] = {}
    panels = {}
    for name, run in by_label(runs).items():
        view = collapse.local_view(run.simulation, run.executor, run.round + 1)
        cosines = collapse.agreement(view.vectors).cpu()
        clients, classes, size = view.vectors.shape
        # The neighbors of a vector are those of its class at the other clients. A perplexity above their number would
        # separate equal vectors.
        perplexity = max((clients - 1) / 3, 1.0)
        points = embed.tsne(view.vectors.reshape(clients * classes, size).cpu(), options.seed, perplexity)
        labels = torch.arange(classes).repeat(clients)
        panels[name] = (cosines.numpy(), points.numpy(), labels.numpy())
        numbers[name] = {
            "clients": view.clients,
            "cosines": cosines.tolist(),
            "mean_cosine": collapse.consistency(view.vectors),
            "place": points.tolist(),
            "class": labels.tolist(),
        }
    return AnalysisReport(numbers, {"": plots.classifiers(panels, options.width)})


@analysis("dimension", "accuracy and collapse against the dimension of the features, over runs (FedETF, Fig. 6a)")
def analyze_dimension(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Measure accuracy and neural collapse of the global models of runs with different feature dimensions."""
    groups: dict[int, list[dict[str, float]]] = {}
    for run in runs:
        accuracy = global_accuracy(run.simulation)
        measured = {"accuracy": accuracy, **collapse.measure(run.simulation)._asdict()}
        groups.setdefault(run.simulation.task.model.features, []).append(measured)
    numbers = {d: {key: sum(e[key] for e in each) / len(each) for key in each[0]} for d, each in sorted(groups.items())}
    fig = plots.dimension(numbers, options.width)
    return AnalysisReport({str(d): {**values, "runs": len(groups[d])} for d, values in numbers.items()}, {"": fig})
