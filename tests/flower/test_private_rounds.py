"""Differential privacy of rounds at sites: DP-SGD and clipping at the site, noise of the mean at the server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from simulations import make_simulation, make_world, run
from small import federation, network

import fedhead as fh

LARGE = {"epsilon": 1e20, "noise_multiplier": 1e-8}  # so little noise that both transports agree


@pytest.mark.parametrize("protection", [fh.ClientDP(delta=0.01, clip=0.1, **LARGE), fh.SampleDP(delta=1e-4, **LARGE)])
def test_rounds_at_sites_equal_the_simulation(protection: fh.Protection, tmp_path: Path) -> None:
    local = fh.LocalTraining(1, 14, fh.SGD(lr=0.1))
    settings = {"local": local, "rounds": 2, "seed": 1, "privacy": (protection,)}
    model, method = network("group"), fh.FedAvg()
    data = federation()
    data = dataclasses.replace(data, transform=data.transform.replace(augment="none"))  # its keys are secret as well
    world = make_world(data, {"own": model}, method, settings, tmp_path)
    found = run(world.transport(world.grid()))
    expected = run(make_simulation(data, [model], method, **settings))
    for name, t in expected.server["model"].items():
        torch.testing.assert_close(found.server["model"][name], t, atol=1e-5, rtol=1e-4)
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert row["privacy"] == other["privacy"]
        assert "train_loss" not in row  # not protected, and of sample_dp it never leaves the site
