"""Analyses of client drift and of calibration: layers, classifiers, separability, features, inversion (CCVR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import require
from fedhead.core.training.batch import Output
from fedhead.core.tree.tree import Weights
from fedhead.engine.clients.server import global_model
from fedhead.models.split_model import classify
from fedhead.papers.analyses import cka, client_models, embed, inversion, norms, plots, separability
from fedhead.papers.analyses.registry import AnalysisOptions, AnalysisReport, analysis, by_label
from fedhead.runs.reopen import Trained, fresh
from fedhead.stages.ccvr import CCVR
from fedhead.stages.recalibrate import Recalibrate

S = TypeVar("S", bound=Stage)


def own_stage(run: Trained, kind: type[S]) -> S:
    """Return the run's stage of this class, or one with default parameters."""
    return next((stage for stage in run.experiment.stages if type(stage) is kind), kind())


@analysis("cka", "similarity of the clients' models, layer by layer (CCVR, Fig. 1, 2, 11)")
def analyze_cka(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Compare the local models on the test samples by pairwise linear CKA, layer by layer."""
    similarities = {}
    for name, run in by_label(runs).items():
        simulation, test = run.simulation, client_models.held_out_pool(run.simulation)
        require(
            len(set(simulation.clients.assign)) <= 1,
            f"{run.path}: clients differ in architecture, so their layers have no counterparts",
        )
        models = client_models.local_models(simulation, run.executor, run.round + 1)
        rows = embed.sample_rows(test.y, options.samples or len(test), options.seed)
        batches = (test.view(part.to(test.device), None) for part in torch.split(rows, 256))
        similarities[name] = cka.similarity(simulation.task.model, models, batches)
    first = next(iter(similarities.values()))
    shown = list(first.layers)
    shown = [shown[0], shown[len(shown) // 2], shown[-1]] if len(shown) > 3 else shown
    numbers = {
        name: {
            "clients": list(each.clients),
            "means": each.means(),
            "samples": dict(each.samples),
            "layers": {layer: matrix.tolist() for layer, matrix in each.layers.items()},
        }
        for name, each in similarities.items()
    }
    maps = plots.heat_maps({layer: first.layers[layer].numpy() for layer in shown}, first.clients, options.width)
    means = plots.layer_means({name: each.means() for name, each in similarities.items()}, options.width)
    return AnalysisReport(numbers, {"": maps, "-means": means})


@analysis(
    "norms", "label counts and classifier norms by client and round, and after calibration (CCVR, Fig. 3, 10, 12)"
)
def analyze_norms(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Repeat selected rounds and compute the norms of the local classifiers in these and after the last round."""
    run = only(runs, "norms")
    after_last = run.round + 1
    client_models.check_rounds(options.rounds, after_last, run.round)
    early = [r for r in options.rounds if r != after_last]
    models = client_models.replay(fresh(run), run.executor, early) if early else {}
    models[after_last] = client_models.local_models(run.simulation, run.executor, after_last)
    clients = list(models[after_last])
    counts = run.simulation.clients.counts[clients].cpu()
    maps = {"samples": counts.numpy()}
    numbers: dict[str, Any] = {"clients": clients, "counts": counts.tolist(), "rounds": {}}
    for number, each in models.items():
        values = norms.client_norms(each)
        # The clients train the final model once more, as in an additional round.
        extra = {"trained": f"in an extra round after the run's {run.round} rounds"} if number == after_last else {}
        maps[f"norms, {'after the last round' if extra else f'round {number}'}"] = values.numpy()
        numbers["rounds"][str(number)] = {
            **extra,
            "norms": values.tolist(),
            "correlation_with_counts": norms.correlation(values, counts),
        }
    shown = {"": plots.by_client_and_class(maps, clients, options.width)}
    if global_model(run.simulation.experiment.method, run.simulation.server, run.simulation.task) is not None:
        before = norms.classifier_norms(client_models.global_weights(run.simulation))
        calibrated = run.run(own_stage(run, CCVR)).weights
        assert calibrated is not None
        after = norms.classifier_norms(calibrated)
        numbers["calibration"] = {
            "before": before.tolist(),
            "after": after.tolist(),
            "spread_before": norms.spread(before),
            "spread_after": norms.spread(after),
        }
        shown["-calibration"] = plots.norms_before_after(before.numpy(), after.numpy(), options.width)
    return AnalysisReport(numbers, shown)


@analysis("separability", "distances between the classes' Gaussians against the gain of calibration (CCVR, Fig. 6)")
def analyze_separability(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Compare the classes' mean sliced Wasserstein distance with the gains of CCVR and of calibration on real data."""
    numbers: dict[str, Any] = {}
    for name, run in by_label(runs).items():
        expected = _forecast(run, options)
        numbers[name] = {
            "distance": expected.separability,
            "forecast": expected.gain,
            "before": client_models.global_accuracy(run.simulation),
            "ccvr": run.run(own_stage(run, CCVR)).accuracy,
            "whole_data": run.run(own_stage(run, Recalibrate)).accuracy,
        }
    rows = list(numbers.values())
    gains = {
        "CCVR": [r["ccvr"] - r["before"] for r in rows],
        "all real data": [r["whole_data"] - r["before"] for r in rows],
        "forecast": [r["forecast"] for r in rows],
    }
    fig = plots.separability([r["distance"] for r in rows], gains, list(numbers), options.width)
    return AnalysisReport(numbers, {"": fig})


@analysis("forecast", "expected gain of calibrating, from class statistics alone (CCVR, Section 5.4)")
def analyze_forecast(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Compare the current classifier with the best linear one on features drawn from the class statistics."""
    return AnalysisReport({name: _forecast(run, options)._asdict() for name, run in by_label(runs).items()})


def _forecast(run: Trained, options: AnalysisOptions) -> separability.Forecast:
    head = client_models.global_weights(run.simulation).part("classifier")
    statistics = client_models.train_statistics(run.simulation)
    return separability.forecast(run.simulation.task.model, head, statistics, options.samples or 500, options.seed)


@analysis(
    "embed", "t-SNE of test features, colored by truth and by predictions before and after CCVR (CCVR, Fig. 5, 13)"
)
def analyze_embedding(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Embed test features in the plane, colored by label and by the predictions before and after calibration."""
    run = only(runs, "embed")
    simulation = run.simulation
    rows = embed.sample_rows(client_models.held_out_pool(simulation).y, options.samples or 1000, options.seed)
    z, y = client_models.held_out_features(simulation, rows)
    stage = own_stage(run, CCVR).on_method(simulation.experiment.method)
    calibrated = run.run(stage).weights
    assert calibrated is not None, "a run with features of one global model has a calibrated one"

    def predicted(algorithm: Algorithm, w: Weights) -> Tensor:
        # Use the stage's own scores, since calibration may transform features at test time.
        scores = algorithm.scores(Output(z, z, classify(simulation.task.model, w, z)), w, simulation.task)
        return scores.argmax(1).cpu()

    before = predicted(simulation.experiment.method, client_models.global_weights(simulation))
    after = predicted(stage, calibrated)
    place = embed.tsne(z, options.seed)
    y = y.cpu()
    colors = {"truth": y.numpy(), "before calibration": before.numpy(), "after": after.numpy()}
    numbers = {
        "place": place.tolist(),
        **{name.split()[0]: label.tolist() for name, label in colors.items()},
        "accuracy_before": 100 * float((before == y).double().mean()),
        "accuracy_after": 100 * float((after == y).double().mean()),
    }
    names = simulation.clients.federation.class_names or [str(c) for c in range(simulation.task.classes)]
    return AnalysisReport(numbers, {"": plots.embeddings(place.numpy(), colors, names, options.width)})


@analysis("inversion", "inputs reconstructed from a raw feature and from means of features (CCVR, Fig. 8, 9)")
def analyze_inversion(runs: Sequence[Trained], options: AnalysisOptions) -> AnalysisReport:
    """Reconstruct training samples of three classes from their features and from class means.

    As in the paper, there is one sample of each of the three largest classes of the largest client.
    """
    run = only(runs, "inversion")
    simulation = run.simulation
    shape = simulation.clients.federation.input_shape
    require(len(shape) == 3, f"{run.path}: inputs of shape {shape} are no images, there is nothing to be seen")
    client = max(simulation.clients.holders, key=lambda k: len(simulation.clients.federation.indices[k]))
    rows = torch.from_numpy(simulation.clients.federation.indices[client])
    y = simulation.clients.pool.y.cpu()[rows]
    counts = y.bincount()
    chosen = [int(c) for c in counts.argsort(descending=True, stable=True)[:3] if counts[c] > 0]
    w, names = client_models.global_weights(simulation), simulation.clients.federation.class_names
    shown: dict[str, dict[str, Any]] = {}
    numbers: dict[str, Any] = {"client": client, "classes": chosen, "features_in_the_mean": {}, "error": {}}
    for c in chosen:
        mine = rows[y == c][: options.samples or 50].to(simulation.device)
        inputs = simulation.clients.pool.view(mine, None)
        result = inversion.inversions(simulation.task.model, w, inputs, seed=options.seed)
        titles = ["original", *("its feature" if n == 1 else f"mean of {n}" for n in result.numbers)]
        images = zip(titles, [result.original, *result.reconstructions], strict=True)
        shown[str(names[c]) if names else f"class {c}"] = {title: image.cpu().numpy() for title, image in images}
        numbers["features_in_the_mean"][str(c)] = list(result.numbers)
        numbers["error"][str(c)] = result.errors()
    return AnalysisReport(numbers, {"": plots.images(shown, options.width)})


def only(runs: Sequence[Trained], name: str) -> Trained:
    """Return the single run of an analysis.

    Raises:
        BadInput: If there are several.
    """
    require(len(runs) == 1, f"{name} takes one run at a time, {len(runs)} were given: give one of them")
    return runs[0]
