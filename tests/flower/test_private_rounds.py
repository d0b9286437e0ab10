"""Differential privacy of rounds at sites: DP-SGD and clipping at the site, noise of the mean at the server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from simulations import make_simulation, make_world, run
from small import federation, network

import fedhead as fh
from fedhead.cli import call
from fedhead.flower.ledger import Ledger

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


def test_the_ledger_of_a_site_has_the_epsilon_of_its_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    local, protection = fh.LocalTraining(1, 4, fh.SGD(lr=0.1)), fh.SampleDP(epsilon=5.0, delta=1e-4)
    settings = {"local": local, "rounds": 2, "seed": 1, "privacy": (protection,)}
    world = make_world(federation(), {"own": network("group")}, fh.FedAvg(), settings, tmp_path)

    def spent() -> dict[str, list[float]]:
        """Run both rounds; return ε of each reply, by site."""
        run(world.transport(world.grid()))
        found: dict[str, list[float]] = {}
        for entry in Ledger.find(tmp_path).entries():
            if "privacy" in entry:
                found.setdefault(entry["site"], []).append(entry["privacy"]["epsilon"])
        return found

    first = spent()
    assert len(first) == 4
    for own in first.values():
        assert own == [pytest.approx(4.0, abs=1.0), pytest.approx(5.0, rel=1e-2)]
    for site, own in spent().items():  # the server asks for the same rounds again: new noise, more budget
        assert own[:2] == first[site]
        assert 5.5 < own[2] < own[3]
    assert call(["ledger", str(tmp_path)]) == 0
    assert f" {first['site-0'][1]:.3g} " in capsys.readouterr().out
