"""Attacks succeed without protection, and each protection stops those that it is made for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedhead as fh
from fedhead.api.privacy import membership_inference
from fedhead.api.privacy.attack import Audit, features_of
from fedhead.calibration.statistics import from_features
from fedhead.cli import call
from fedhead.engine.rounds.simulation import Simulation
from fedhead.privacy import attacks, gaussian
from fedhead.privacy.dp import Deviations, Release

MODEL = "mlp(hidden=[100])"


def federation() -> fh.Federation:
    return fh.Federation.load("digits", "dirichlet(0.1)", clients=8, subset=300, seed=1)


def trained(stages: Sequence[str], uploads: Sequence[str] = (), privacy: Sequence[str] = ()) -> fh.Result:
    return fh.run(
        federation(), MODEL, rounds=0, stages=stages, uploads=uploads, privacy=privacy, executor="loop", device="cpu"
    )


# -- statistics -----------------------------------------------------------------------------------------
def test_one_and_two_samples_of_a_class_come_back_exactly() -> None:
    z = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    statistics = from_features(z, torch.tensor([0, 1, 1, 2, 2, 2, 2]), classes=4)
    found = features_of(statistics)
    assert found.keys() == {0, 1}
    assert torch.equal(found[0][0], z[0])  # the sum is the sample
    pair = found[1] if (found[1][0] - z[1]).norm() < (found[1][0] - z[2]).norm() else found[1].flip(0)
    torch.testing.assert_close(pair, z[1:3], atol=1e-9, rtol=1e-9)
    same = from_features(z[[0, 0]], torch.tensor([0, 0]), classes=1)
    torch.testing.assert_close(features_of(same)[0], z[[0, 0]], atol=1e-6, rtol=1e-6)


def test_files_of_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = federation()
    model = fh.build("mlp", data.input_shape, 10, hidden=[16])
    x, y = data.train.x, torch.tensor([0] * 1 + [1] * 2 + [2] * 9)
    for name, rows in (("new", np.arange(12)), ("old", np.arange(11))):
        fh.save_statistics(tmp_path / name, fh.statistics_of(model, x[rows], y[rows], transform=data.transform))
    assert call(["audit", str(tmp_path / "new"), str(tmp_path / "old"), "--json"]) == 0
    found = {attack["name"]: attack for attack in json.loads(capsys.readouterr().out)["attacks"]}
    assert (found["reconstruction"]["unprotected"], found["reconstruction"]["protected"]) == (3, 0)
    assert found["differencing"]["unprotected"] == 1  # sample 11
    assert (found["label counts"]["unprotected"], found["label counts"]["protected"]) == (3, 1)
    other = fh.build("mlp", data.input_shape, 10, hidden=[8])
    with pytest.raises(fh.BadInput, match="earlier: these statistics have another extractor"):
        fh.audit(tmp_path / "new", fh.statistics_of(other, x[:12], y, transform=data.transform))


# -- runs -----------------------------------------------------------------------------------------------
def audit_of(minimum: int, uploads: Sequence[str] = (), privacy: Sequence[str] = ()) -> Audit:
    result = trained(["ccvr(samples=20, epochs=1)"], uploads, privacy)
    return fh.audit(result, min_class_count=minimum, shadows=0, releases=100)


def test_attacks_on_statistics_succeed_without_protection() -> None:
    plain = audit_of(1)
    assert plain.protections == []
    for name in ("reconstruction", "differencing", "label counts"):
        assert plain[name].unprotected == plain[name].protected == 1
    assert plain["inversion"].unprotected is not None
    assert plain["inversion"].unprotected < 0.5  # recognizable inputs


@pytest.mark.slow
def test_reconstruction_fails_with_each_of_the_three_protections() -> None:
    small, summed, noisy = audit_of(5), audit_of(1, ["secure_sum"]), audit_of(1, (), ["dp(epsilon=8, delta=1e-4)"])
    for protected in (small, summed, noisy):
        assert protected["reconstruction"].unprotected == 1
        assert protected["reconstruction"].protected == 0
        inverted = protected["inversion"].protected
        assert inverted is None or inverted > 1  # no feature to begin with, or one of noise
        assert (protected["label counts"].protected or 0) < 0.8
    assert noisy["differencing"].protected == 0
    # neither of the others is made against it
    assert (small["differencing"].protected or 0) > 0.5
    assert summed["differencing"].protected == 1


def test_an_invertible_model_gives_the_input_itself() -> None:
    layers = [nn.Flatten(), nn.Linear(64, 64, bias=False), nn.Linear(64, 10)]
    with torch.no_grad():
        layers[1].weight.copy_(torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0])
    model = fh.split(nn.Sequential(*layers), classifier="2")
    result = fh.run(federation(), model, rounds=0, stages=["ncm"], executor="loop", device="cpu")
    found = fh.audit(result, shadows=0)["inversion"]
    assert found.unprotected is not None
    assert found.unprotected < 0.05
    simulation = result.trained.with_data()
    assert isinstance(simulation, Simulation)
    assert simulation.task.min_class_count == 1  # the audit changes nothing


@pytest.mark.slow
def test_membership_of_an_overfitted_model_is_found() -> None:
    data = fh.Federation.load("digits", "iid", clients=2, subset=120, seed=0)
    noise = torch.randint(10, data.train.y.shape, generator=torch.Generator().manual_seed(1))
    labels = torch.where(torch.rand(len(noise), generator=torch.Generator().manual_seed(2)) < 0.4, noise, data.train.y)
    data = replace(data, train=fh.Samples(data.train.x, labels))  # wrong labels have to be memorized
    settings = {"local_epochs": 10, "batch_size": 16, "lr": 0.1, "executor": "loop", "device": "cpu"}
    found = {rounds: fh.audit(fh.run(data, MODEL, rounds=rounds, **settings), shadows=8) for rounds in (1, 20)}
    area = {rounds: found[rounds]["loss threshold"].protected or 0 for rounds in found}
    assert area[20] > 0.6
    assert area[1] < area[20]
    assert (found[20]["likelihood ratio"].protected or 0) > 0.6


def test_shadows_hold_each_sample_in_half_of_them() -> None:
    data = federation()
    samples, member = membership_inference.candidates(data, None, seed=0)
    assert member.sum() * 2 == len(samples.y) == 2 * len(np.concatenate(data.indices))
    # a target that is far more confident on members than any shadow model is found
    experiment = trained(["ncm"]).trained.clients.experiment
    scores = membership_inference.likelihood_ratios(np.where(member, 40.0, -40.0), samples, data, experiment, 4, seed=0)
    assert attacks.area_under_curve(scores[member], scores[~member]) > 0.6


# -- canaries -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_bound_lies_under_epsilon_of_a_gaussian_mechanism(mu: float) -> None:
    generator = np.random.default_rng(0)
    scores = [generator.normal(mean, 1, 20_000) for mean in (mu, 0)]
    bound = attacks.epsilon_bound(*scores, 1e-5)
    assert 0.2 * gaussian.epsilon_of(1e-5, mu) < bound < gaussian.epsilon_of(1e-5, mu)
    assert attacks.epsilon_bound(scores[1], generator.normal(0, 1, 20_000), 1e-5) < 0.1  # nothing to find


@pytest.mark.slow
def test_canaries_bound_epsilon_under_the_claim_and_find_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def bounds() -> list[tuple[float, float]]:
        result = trained(["ridge", "ncm"], privacy=["dp(epsilon=4, delta=1e-4, test_seed=0)"])
        found = [attack for attack in fh.audit(result, shadows=0).attacks if attack.name == "canaries"]
        claimed = [result.stages[name].metrics["privacy"]["epsilon"] for name in ("ridge", "ncm")]
        return [(attack.protected or 0.0, epsilon) for attack, epsilon in zip(found, claimed, strict=True)]

    for bound, claimed in bounds():
        assert 0 < bound < claimed < 4
    right = Release.deviations

    def little(self: Release, features: int, moments: bool) -> Deviations:
        return right(self, features, moments).scaled(0.2)

    monkeypatch.setattr(Release, "deviations", little)
    for bound, claimed in bounds():
        assert bound > claimed


@pytest.mark.slow
@pytest.mark.parametrize("uploads", [[], ["secure_sum"]])
def test_features_without_a_private_mean_are_audited_in_both_exchanges(uploads: list[str], tmp_path: Path) -> None:
    privacy = ["dp(epsilon=8, delta=1e-4, center=private)"]
    settings = {"executor": "loop", "device": "cpu", "out": tmp_path}
    fh.run(federation(), MODEL, rounds=0, stages=["ridge"], uploads=uploads, privacy=privacy, **settings)
    found = fh.audit(fh.load(tmp_path, federation=federation()), min_class_count=1, shadows=0)
    assert [attack.on for attack in found.attacks if attack.name == "canaries"] == ["stage ridge.center", "stage ridge"]
    assert found["reconstruction"].protected == found["differencing"].protected == 0


# -- command --------------------------------------------------------------------------------------------
def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["subset=200", "rounds=0", "stages=[ridge]", "clients=8", "partition=dirichlet(0.1)"]
    assert call(["run", "digits", *words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert call(["audit", str(tmp_path / "run"), "--shadows", "0"]) == 0
    out = capsys.readouterr().out
    assert "protections: min_class_count=5" in out
    assert "stage ridge" in out


def test_bad_input(tmp_path: Path) -> None:
    result = trained(["ncm"])
    for arguments, text in [
        ({"min_class_count": 0}, "min_class_count: 0 is out of range"),
        ({"shadows": 2}, "shadows: 2 is out of range"),
        ({"releases": 10}, "releases: 10 is out of range"),
        ({"earlier": tmp_path}, "earlier: this is for statistics"),
    ]:
        with pytest.raises(fh.BadInput, match=text):
            fh.audit(result, **arguments)  # type: ignore[arg-type]  # on purpose
    result.trained.states = None  # as of a run of real sites
    with pytest.raises(fh.BadInput, match="the samples are at the sites"):
        fh.audit(result)
