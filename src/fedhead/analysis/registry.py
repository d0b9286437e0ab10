"""The registry of analyses: each evaluates trained runs and returns numbers and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.analysis import cka, client_models, embed, inversion, norms, plots, separability
from fedhead.core.batch import Output
from fedhead.core.errors import BadInput
from fedhead.core.parameters import parameters
from fedhead.core.registry import Registry
from fedhead.core.tree import Weights
from fedhead.engine.server import global_accuracy
from fedhead.experiment.reopen import Trained, fresh
from fedhead.models.split_model import classify
from fedhead.stages.ccvr import CCVR
from fedhead.stages.recalibrate import Recalibrate


@dataclass(frozen=True)
class Options:
    """The options of an analysis; each uses those that apply to it."""

    samples: int | None = None  # number of samples to use; None: the default of the analysis
    rounds: Sequence[int] = (1,)  # rounds whose local models are analyzed, besides those after the last
    seed: int = 0


class Report(NamedTuple):
    """The results of an analysis."""

    numbers: Mapping[str, Any]  # anything that JSON can represent
    figures: Mapping[str, Figure]  # by the suffix of the file name, "" for the main figure


class Analysis(NamedTuple):
    """An analysis, one line of `fedhead ls analyses`."""

    description: str
    run: AnalysisFunction


S = TypeVar("S", bound=Stage)
AnalysisFunction = Callable[[Sequence[Trained], Options], Report]
F = TypeVar("F", bound=Callable[..., Any])
ANALYSES = Registry[Analysis](
    "analysis",
    "fedhead.analyses",
    lambda found, name: _checked(found, name),
    home=["fedhead.analysis.registry", "fedhead.analysis.clientwise", "fedhead.analysis.geometry"],
)


def analysis(name: str, description: str = "") -> Callable[[F], F]:
    """Register an analysis under a name: a function (runs, options) that returns a `Report`.

    Args:
        name: The name on the command line.
        description: One line for `fedhead ls analyses`; without it the docstring's first.
    """

    def register(function: F) -> F:
        if description:
            vars(function)["description"] = description
        return ANALYSES.register(name, function)

    return register


def _checked(found: Any, name: str) -> Analysis:
    if isinstance(found, type) or not callable(found):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise BadInput(
            f"{name} is {kind}, no analysis: name a function (runs, options) that returns a "
            "fedhead.analysis.registry.Report"
        )
    taken = parameters(found)
    if len(taken) != 2:
        raise BadInput(f"{name} takes ({', '.join(taken)}), an analysis is called with (runs, options)")
    return Analysis(getattr(found, "description", "") or (found.__doc__ or "").strip().partition("\n")[0], found)


def label(run: Trained) -> str:
    """Return the name of a run in plots."""
    return f"{run.recipe.method} {run.recipe.partition}"


def own_stage(run: Trained, kind: type[S]) -> S:
    """Return the run's stage of this class with the settings of its recipe, or one with defaults."""
    return next((stage for stage in run.experiment.stages if type(stage) is kind), kind())


@analysis("cka", "similarity of the clients' models, layer by layer (CCVR, Fig. 1, 2, 11)")
def analyze_cka(runs: Sequence[Trained], options: Options) -> Report:
    """Compare the local models on the test samples by pairwise linear CKA; several runs are compared layer by layer."""
    found = []
    for run in runs:
        simulation, test = run.simulation, run.simulation.test
        if test is None:
            raise BadInput(f"{run.path} has no test samples, on which models are compared")
        if len(set(simulation.assign)) > 1:
            raise BadInput(f"{run.path}: clients differ in architecture, so their layers have no counterparts")
        models = client_models.local_models(simulation, run.executor, run.round + 1)
        rows = embed.sample_rows(test.y, options.samples or len(test), options.seed)
        batches = (test.view(part.to(test.device), None) for part in torch.split(rows, 256))
        found.append(
            cka.similarity(
                simulation.task.model, models, batches, budget=client_models.budget(run.simulation, run.executor)
            )
        )
    names = _names(runs)
    first = found[0]
    shown = list(first.layers)
    shown = [shown[0], shown[len(shown) // 2], shown[-1]] if len(shown) > 3 else shown
    numbers = {
        name: {
            "clients": list(each.clients),
            "means": each.means(),
            "samples": dict(each.samples),
            "layers": {layer: matrix.tolist() for layer, matrix in each.layers.items()},
        }
        for name, each in zip(names, found, strict=True)
    }
    maps = plots.heat_maps({layer: first.layers[layer].numpy() for layer in shown}, first.clients)
    means = plots.layer_means({name: each.means() for name, each in zip(names, found, strict=True)})
    return Report(numbers, {"": maps, "-means": means})


@analysis(
    "norms", "label counts and classifier norms by client and round, and after calibration (CCVR, Fig. 3, 10, 12)"
)
def analyze_norms(runs: Sequence[Trained], options: Options) -> Report:
    """Compute the norms of the local classifiers in chosen rounds, which are run again, and after the last round."""
    run = _only(runs, "norms")
    after_last = run.round + 1
    late = [r for r in options.rounds if not 1 <= r <= after_last]
    if late:
        raise BadInput(f"round {late[0]} is not among the run's 1 … {run.round}")
    early = [r for r in options.rounds if r != after_last]
    models = client_models.replay(fresh(run), run.executor, early) if early else {}
    models[after_last] = client_models.local_models(run.simulation, run.executor, after_last)
    clients = list(models[after_last])
    counts = run.simulation.counts[clients].cpu()
    maps = {"samples": counts.numpy()}
    numbers: dict[str, Any] = {"clients": clients, "counts": counts.tolist(), "rounds": {}}
    for number, each in models.items():
        found = norms.client_norms(each)
        maps[f"norms, round {number}"] = found.numpy()
        numbers["rounds"][str(number)] = {
            "norms": found.tolist(),
            "correlation_with_counts": norms.correlation(found, counts),
        }
    shown = {"": plots.by_client_and_class(maps, clients)}
    if run.simulation.method.global_model(run.simulation.server, run.simulation.task) is not None:
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
        shown["-calibration"] = plots.norms_before_after(before.numpy(), after.numpy())
    return Report(numbers, shown)


@analysis("separability", "distances between the classes' Gaussians against the gain of calibration (CCVR, Fig. 6)")
def analyze_separability(runs: Sequence[Trained], options: Options) -> Report:
    """Compare the mean sliced Wasserstein distance with the gains of CCVR and of all real data, one point per run."""
    numbers: dict[str, Any] = {}
    for name, run in zip(_names(runs), runs, strict=True):
        w = client_models.global_weights(run.simulation)
        statistics = client_models.train_statistics(run.simulation)
        expected = separability.forecast(
            run.simulation.task.model, w.part("classifier"), statistics, options.samples or 500, options.seed
        )
        simulation = run.simulation
        before = global_accuracy(
            simulation.method, simulation.server, simulation.task, simulation.test, simulation.bf16
        )["accuracy"]
        assert isinstance(before, float)
        numbers[name] = {
            "distance": expected.separability,
            "forecast": expected.gain,
            "before": before,
            "ccvr": run.run(own_stage(run, CCVR)).accuracy,
            "whole_data": run.run(own_stage(run, Recalibrate)).accuracy,
        }
    rows = list(numbers.values())
    gains = {
        "CCVR": [r["ccvr"] - r["before"] for r in rows],
        "all real data": [r["whole_data"] - r["before"] for r in rows],
        "forecast": [r["forecast"] for r in rows],
    }
    return Report(numbers, {"": plots.separability([r["distance"] for r in rows], gains, list(numbers))})


@analysis(
    "embed", "t-SNE of test features, colored by truth and by predictions before and after CCVR (CCVR, Fig. 5, 13)"
)
def analyze_embedding(runs: Sequence[Trained], options: Options) -> Report:
    """Embed test features in the plane with three colorings."""
    run = _only(runs, "embed")
    simulation = run.simulation
    if simulation.test is None:
        raise BadInput(f"{run.path} has no test samples to show")
    rows = embed.sample_rows(simulation.test.y, options.samples or 1000, options.seed)
    z, y = client_models.held_out_features(simulation, rows)
    stage = own_stage(run, CCVR).after(simulation.method)
    calibrated = run.run(stage).weights
    assert calibrated is not None, "a run with features of one global model has a calibrated one"

    def predicted(algorithm: Algorithm, w: Weights) -> Tensor:
        # by the algorithm's own scores: a calibration may transform features in testing
        scores = algorithm.scores(Output(z, z, classify(simulation.task.model, w, z)), w, simulation.task)
        return scores.argmax(1).cpu()

    before = predicted(simulation.method, client_models.global_weights(simulation))
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
    names = simulation.federation.names or [str(c) for c in range(simulation.task.classes)]
    return Report(numbers, {"": plots.embeddings(place.numpy(), colors, names)})


@analysis("inversion", "inputs reconstructed from a raw feature and from means of features (CCVR, Fig. 8, 9)")
def analyze_inversion(runs: Sequence[Trained], options: Options) -> Report:
    """Reconstruct a training sample from its feature and from means over its class by gradient descent."""
    run = _only(runs, "inversion")
    simulation = run.simulation
    shape = simulation.federation.input_shape
    if len(shape) != 3:
        raise BadInput(f"{run.path}: inputs of shape {shape} are no images, there is nothing to be seen")
    client = max(simulation.holders, key=lambda k: len(simulation.federation.rows[k]))
    rows = torch.from_numpy(simulation.federation.rows[client])
    y = simulation.pool.y.cpu()[rows]
    common = int(y.bincount().argmax())
    mine = rows[y == common][: options.samples or 50].to(simulation.device)
    found = inversion.inversions(
        simulation.task.model,
        client_models.global_weights(simulation),
        simulation.pool.view(mine, None),
        seed=options.seed,
    )
    titles = ["original", *("its feature" if n == 1 else f"mean of {n}" for n in found.numbers)]
    images = [found.original, *found.found]
    numbers = {
        "client": client,
        "class": common,
        "features_in_the_mean": list(found.numbers),
        "error": found.errors(),
    }
    shown = {title: image.cpu().numpy() for title, image in zip(titles, images, strict=True)}
    return Report(numbers, {"": plots.images(shown)})


def _only(runs: Sequence[Trained], name: str) -> Trained:
    if len(runs) != 1:
        raise BadInput(f"{name} takes one run at a time, {len(runs)} were given")
    return runs[0]


def _names(runs: Sequence[Trained]) -> list[str]:
    """Return a name for each run, with its folder if labels are the same."""
    labels = [label(run) for run in runs]
    return [text if labels.count(text) == 1 else f"{text} ({run.path})" for text, run in zip(labels, runs, strict=True)]
