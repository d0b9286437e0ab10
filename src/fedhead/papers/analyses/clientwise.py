"""Analyses of personal models, possibly with different architectures (FedClassAvg, Fig. 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedhead.core.system.log import warn_once
from fedhead.papers.analyses import client_models, conductance, embed, plots
from fedhead.papers.analyses.personal import agreement, outputs, personal_models
from fedhead.papers.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.runs.reopen import Trained


@analysis("features", "t-SNE of all clients' features together, colored by class and by client (FedClassAvg, Fig. 8)")
def analyze_features(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Embed the features of the same test samples from every personal model, one row of panels per run."""
    numbers: dict[str, Any] = {}
    embeddings = {}
    for name, run in by_label(runs).items():
        models, test = personal_models(run.simulation, run.round + 1), client_models.held_out_pool(run.simulation)
        each = max(2, (options.samples or 1000) // len(models))
        rows = embed.sample_rows(test.y, each, options.seed)
        by_client = outputs(models, test, rows)
        features = [out.z.cpu() for out in by_client.values()]
        client_models.check_same_size([z.shape[1] for z in features], run.path)
        z, y = torch.cat(features), test.y.cpu()[rows].repeat(len(models))
        client = torch.tensor(list(models)).repeat_interleave(len(rows))
        points = embed.tsne(z, options.seed)
        embeddings[name] = (points.numpy(), y.numpy(), client.numpy())
        numbers[name] = {
            "place": points.tolist(),
            "class": y.tolist(),
            "client": client.tolist(),
            "neighbors_of_the_same_class": agreement(z, y, client),
        }
    classes = runs[0].simulation.task.classes
    return AnalysisReport(numbers, {"": plots.client_embeddings(embeddings, classes, options.width)})


@analysis(
    "conductance", "which features matter to each client's classifier for one image, as ranks (FedClassAvg, Fig. 9)"
)
def analyze_conductance(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Rank the conductances of features for the test image that most clients classify correctly."""
    numbers: dict[str, Any] = {}
    maps, same = {}, []
    for name, run in by_label(runs).items():
        models, test = personal_models(run.simulation, run.round + 1), client_models.held_out_pool(run.simulation)
        rows = embed.sample_rows(test.y, options.samples or 200, options.seed)
        y = test.y[rows.to(test.device)]
        by_client = outputs(models, test, rows)
        right = torch.stack([out.logits.argmax(1) == y for out in by_client.values()])
        best = int(right.sum(dim=0).argmax())
        x, truth = test.view(rows[best : best + 1].to(test.device), None), y[best : best + 1]
        chosen = [client for client, correct in zip(models, right[:, best], strict=True) if correct]
        values = {client: conductance.conductance(models[client], x, truth)[0].cpu() for client in chosen}
        client_models.check_same_size([len(v) for v in values.values()], run.path)
        similar = conductance.similarity(values)
        order = torch.stack([conductance.ranks(v) for v in values.values()])
        label = f"{name}, class {int(truth)}"
        maps[label] = (order.numpy(), chosen)
        equal = all(torch.equal(v, values[chosen[0]]) for v in values.values())
        if equal and len(chosen) > 1:
            same.append(label)
            warn_once(
                f"conductance: all clients of {run.path} use one model ({run.recipe.method}), so their columns are "
                "equal; compare clients with their own models"
            )
        numbers[name] = {
            "sample": int(rows[best]),
            "class": int(truth),
            "clients": chosen,
            "conductance": {str(k): v.tolist() for k, v in values.items()},
            "rank_correlation": similar,
            "one_model": equal,
        }
    return AnalysisReport(numbers, {"": plots.rank_maps(maps, same, options.width)})
