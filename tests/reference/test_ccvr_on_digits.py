"""CCVR on the embedded digits: it must gain, and close most of the gap to calibration with all data."""

from __future__ import annotations

import statistics

import pytest

import fedhead
from fedhead import CCVR, Federation, Recalibrate


def accuracies(seed: int, stage: CCVR) -> tuple[float, float, float]:
    """FedAvg, with CCVR, and with all data, on digits over ten clients by Dirichlet(0.1)."""
    run = fedhead.run(
        Federation.load("digits", "dirichlet(0.1)", clients=10, seed=seed),
        "mlp",
        rounds=5,
        local_epochs=10,
        batch_size=32,
        lr=0.05,
        momentum=0.9,
        weight_decay=1e-5,
        seed=seed,
        executor="stack",
        device="cpu",
    )
    found = (run.accuracy, run.calibrate(stage).accuracy, run.calibrate(Recalibrate()).accuracy)
    assert all(value is not None for value in found)
    return found  # type: ignore[return-value]  # just checked


def test_ccvr_gains_on_one_seed() -> None:
    before, after, whole = accuracies(0, CCVR(samples=500))
    assert after > before + 2
    assert abs(whole - after) < 3


@pytest.mark.long
def test_ccvr_closes_most_of_the_gap_to_whole_data_over_five_seeds() -> None:
    """Measured: 89.9 → 95.7 with CCVR, 95.9 with all data, 96 % of the gap; the margin leaves budget for rounding."""
    rows = [accuracies(seed, CCVR()) for seed in range(5)]
    before, after, whole = (statistics.fmean(column) for column in zip(*rows, strict=True))
    assert after - before > 2
    assert (after - before) / (whole - before) >= 0.8
