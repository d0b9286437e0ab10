"""Analyses of the classifier's geometry: neural collapse over the rounds, and the clients' classifiers (FedETF)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from fedhead.analyses import collapse, embed
from fedhead.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.core.errors import BadInput
from fedhead.engine.rounds import train_round
from fedhead.experiment.reopen import Trained, fresh
from fedhead.report.plots import COLORS

Curve = Sequence[Mapping[str, float]]
TITLES = {
    "nc1": "NC1: variance within classes\nover that between them",
    "nc2": "NC2: error of the\nprototypes' simplex",
    "nc3": "NC3: cosine of classifier\nand prototypes",
    "prototype_consistency": "consistency of the\nclients' prototypes",
    "classifier_consistency": "consistency of the\nclients' classifiers",
}


@analysis("collapse", "neural collapse and the clients' consistency, in chosen rounds and at the end (FedETF, Fig. 5)")
def analyze_collapse(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Measure NC1 to NC3 and consistency; earlier rounds are run again, with the same numbers."""
    numbers = {name: collapse_over_rounds(run, options.rounds) for name, run in by_label(runs).items()}
    return AnalysisReport(numbers, {"": curves(numbers)})


def collapse_over_rounds(run: Trained, rounds: Sequence[int]) -> list[dict[str, float]]:
    """Return the metrics after each chosen round, and after the last."""
    late = [r for r in rounds if not 1 <= r <= run.round]
    if late:
        raise BadInput(f"round {late[0]} is not among the run's 1 … {run.round}")
    simulation, found = fresh(run), []
    early = {r for r in rounds if r < run.round}
    for number in range(1, max(early, default=0) + 1):
        train_round(simulation.using(run.executor), number)
        if number in early:
            found.append(collapse.round_metrics(simulation, run.executor, number))
    return [*found, collapse.round_metrics(run.simulation, run.executor, run.round)]


@analysis("classifiers", "cosines of the clients' classifiers, and their vectors in the plane (FedETF, Fig. 1)")
def analyze_classifiers(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Compare the classifiers after one more local round by pairwise cosines, and embed their vectors with t-SNE."""
    numbers: dict[str, Any] = {}
    panels = {}
    for name, run in by_label(runs).items():
        view = collapse.local_view(run.simulation, run.executor, run.round + 1)
        cosines = collapse.agreement(view.vectors).cpu()
        clients, classes, size = view.vectors.shape
        # a vector's neighbors are those of its class at other clients; a larger perplexity separates equal vectors
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
    return AnalysisReport(numbers, {"": classifiers(panels)})


# -- figures ----------------------------------------------------------------------------------------------------------
def curves(runs: Mapping[str, Curve]) -> Figure:
    """Plot each metric over the rounds, one panel per metric, one line per run."""
    fig = Figure(figsize=(3.2 * len(TITLES), 3.2), layout="constrained")
    for points, (key, title) in enumerate(TITLES.items()):
        ax = fig.add_subplot(1, len(TITLES), points + 1)
        for i, (name, rows) in enumerate(runs.items()):
            present = [row for row in rows if key in row]
            x, y = [row["round"] for row in present], [row[key] for row in present]
            ax.plot(x, y, ".-", color=COLORS[i % len(COLORS)], label=name)
        ax.set(xlabel="round")
        ax.set_title(title, fontsize=9)
        if points == 0:
            ax.legend(frameon=False, fontsize=8)
    return fig


def classifiers(runs: Mapping[str, tuple[Any, Any, Any]]) -> Figure:
    """Plot the cosines as a map and the embedded vectors, colored by class, one row per run."""
    fig = Figure(figsize=(7.2, 3.4 * len(runs)), layout="constrained")
    for row, (name, (cosines, points, labels)) in enumerate(runs.items()):
        left = fig.add_subplot(len(runs), 2, 2 * row + 1)
        shown = left.imshow(cosines, vmin=-1, vmax=1, cmap="coolwarm")
        left.set(title=name, xlabel="client", ylabel="client")
        fig.colorbar(shown, ax=left, label="mean cosine over classes")
        right = fig.add_subplot(len(runs), 2, 2 * row + 2)
        x, y = np.asarray(points).T
        dots = right.scatter(x, y, c=labels, s=14, cmap="nipy_spectral", vmin=-0.5, vmax=labels.max() + 0.5)
        right.set(title="classifier vectors, by class", xticks=[], yticks=[])
        fig.colorbar(dots, ax=right, label="class")
    return fig
