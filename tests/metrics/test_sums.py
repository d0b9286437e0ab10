"""Metrics of several clients' samples from the sums of each: those of all samples in one place."""

from __future__ import annotations

import math

import pytest
import torch

from fedhead.core.training.objectives import OBJECTIVES
from fedhead.core.tree.tree import total
from fedhead.metrics.classification import ROC_BINS
from fedhead.metrics.predictions import Predictions, of_outputs
from fedhead.metrics.registry import find, measure
from fedhead.metrics.sums import metric_sums, metrics_of_sums, small_classes, summable

EXACT = [
    *("f1", "precision(average=weighted)", "recall", "balanced_accuracy", "matthews_corrcoef", "cohen_kappa"),
    *("nll", "brier", "topk(k=2)", "ece(bins=7)", "auroc(bins=50)", "auroc(average=weighted, bins=50)"),
]


def predictions(y: torch.Tensor, seed: int = 0, classes: int = 4) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(y), classes, generator=generator, dtype=torch.float64)
    return of_outputs(noise + torch.nn.functional.one_hot(y, classes), y, classes, OBJECTIVES["multiclass"]())


def clients(classes: int = 4) -> list[Predictions]:
    """Three clients, the second without samples of class 0, the third without any of class 1."""
    labels = [torch.arange(60) % classes, torch.arange(33) % (classes - 1) + 1, torch.arange(9) % classes]
    labels[2] = torch.where(labels[2] == 1, 0, labels[2])
    return [predictions(y, seed, classes) for seed, y in enumerate(labels)]


def together(parts: list[Predictions]) -> Predictions:
    scores, y = torch.cat([part.scores for part in parts]), torch.cat([part.y for part in parts])
    return of_outputs(scores, y, parts[0].classes, OBJECTIVES[parts[0].objective]())


@pytest.mark.parametrize("classes", [2, 4])
def test_sums_of_clients_give_the_metrics_of_all_samples(classes: int) -> None:
    metrics = find(EXACT if classes > 2 else [name for name in EXACT if "topk" not in name])
    assert summable(metrics) == metrics
    found = metrics_of_sums(total([metric_sums(part, metrics) for part in clients(classes)]), metrics)
    expected = measure(metrics, together(clients(classes))).values
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_auroc_by_histogram_differs_by_no_more_than_its_ties() -> None:
    metrics, parts = find(["auroc"]), clients()
    sums = total([metric_sums(part, metrics) for part in parts])
    assert sums["0"].shape == (2, 4, ROC_BINS)
    exact = measure(metrics, together(parts)).values["auroc"]
    negative, positive = sums["0"].double()
    ties = (negative * positive).sum(-1) / (negative.sum(-1) * positive.sum(-1))
    assert metrics_of_sums(sums, metrics)["auroc"] == pytest.approx(exact, abs=float(ties.mean()) / 2)
    assert 0 < float(ties.mean()) < 1e-2


def test_a_metric_that_no_clients_samples_define_is_nan() -> None:
    metrics = find(["auroc", "topk(k=4)", "f1"])
    found = metrics_of_sums(metric_sums(predictions(torch.tensor([0, 1, 2])), metrics), metrics)
    assert math.isnan(found["auroc"])
    assert math.isnan(found["topk(k=4)"])
    assert not math.isnan(found["f1"])


def test_small_classes_are_left_out() -> None:
    y, metrics = torch.tensor([0] * 5 + [1] * 2 + [3] * 3), find(["f1", "nll"])
    assert small_classes(predictions(y), 3) == [1]
    sums, kept = metric_sums(predictions(y), metrics, 3), y != 1
    assert sums["confusion"][1].sum() == 0
    part = predictions(y)
    assert part.scores is not None
    rest = of_outputs(part.scores[kept], y[kept], 4, OBJECTIVES["multiclass"]())
    assert metrics_of_sums(sums, metrics) == pytest.approx(measure(metrics, rest).values, abs=1e-12)
    nothing = metrics_of_sums(metric_sums(part, metrics, 9), metrics)
    assert all(map(math.isnan, nothing.values()))


@pytest.mark.parametrize(("objective", "names"), [("regression", ["mse", "mae"]), ("multilabel", ["hamming_loss"])])
def test_other_objectives(objective: str, names: list[str]) -> None:
    metrics, generator = find(names, objective=objective), torch.Generator().manual_seed(0)
    y = (torch.rand(20, 3, generator=generator) > 0.5).double()
    parts = [
        of_outputs(torch.randn(len(part), 3, generator=generator), part, 3, OBJECTIVES[objective]())
        for part in (y[:6], y[6:])
    ]
    found = metrics_of_sums(total([metric_sums(part, metrics) for part in parts]), metrics)
    assert found == pytest.approx(measure(metrics, together(parts)).values, abs=1e-12)
    assert summable(find(["rmse", "r2"], objective="regression")) == {}
