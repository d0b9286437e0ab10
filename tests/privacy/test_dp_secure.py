"""Differential privacy with secure sums: each client adds its share of the noise."""

from __future__ import annotations

import math

import pytest
import torch

import fedhead as fh

HEAD = "mlp(hidden=[])"


def test_shares_of_a_secure_sum_add_up_to_the_noise_of_the_fewest_clients() -> None:
    pytest.importorskip("cryptography")
    federation = fh.Federation.load("digits", "iid", clients=6)
    exact = fh.run(federation, HEAD, rounds=0, stages=["ncm"], privacy=["dp(1e12)"]).stages["ncm"]
    draws: dict[str, list[float]] = {}
    for uploads in ([], ["secure_sum"]):
        for seed in range(10):
            given = fh.run(
                federation, HEAD, rounds=0, stages=["ncm"], privacy=[f"dp(20, test_seed={seed})"], uploads=uploads
            ).stages["ncm"]
            difference = given.weights["classifier.weight"] - exact.weights["classifier.weight"]  # type: ignore[index]
            draws.setdefault(str(uploads), []).append(float(difference.square().mean()))
    plain, shared = (sum(values) / len(values) for values in draws.values())
    fewest = fh.UPLOADS["secure_sum"]().min_clients(6)  # type: ignore[attr-defined]
    assert fewest == 4
    assert math.sqrt(plain / shared) == pytest.approx(math.sqrt(fewest), rel=0.06)
    privacy = given.metrics["privacy"]
    assert "the server sees only totals of at least 4 clients" in privacy["assumptions"][0]
    assert torch.isfinite(difference).all()
