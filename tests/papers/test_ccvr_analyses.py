"""The analyses: pure functions against direct computations, and each from a run folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiers import quick
from torch import Tensor

from fedhead import BadInput, build
from fedhead.calibration import statistics
from fedhead.cli import call
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.loop import Loop
from fedhead.models.layers import activations
from fedhead.models.split_model import weights
from fedhead.papers.analyses import cka, embed, inversion, norms, plots, separability
from fedhead.papers.analyses.client_models import local_models, replay
from fedhead.papers.analyses.registry import ANALYSES
from fedhead.recipes.recipe import Recipe
from fedhead.runs.reopen import fresh, reopen
from fedhead.runs.run import execute

RECIPE = Recipe(
    dataset="digits",
    partition="dirichlet(0.1)",
    clients=4,
    rounds=2,
    local_epochs=2,
    batch_size=32,
    lr=0.05,
    subset=200,
    model="mlp",
    model_parameters={"hidden": [16, 12]},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("analysis") / "run"
    execute(RECIPE, path, Compute(device="cpu", executor="loop"))
    return path


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- CKA ----------------------------------------------------------------------------------------------
def direct_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    top = np.linalg.norm(y.T @ x, "fro") ** 2
    return float(top / (np.linalg.norm(x.T @ x, "fro") * np.linalg.norm(y.T @ y, "fro")))


def test_cka_of_features_with_themselves_is_one_also_rotated_and_scaled() -> None:
    x = draw(0, 50, 7) + 3
    rotation = torch.linalg.qr(draw(1, 7, 7)).Q
    sums = cka.Grams(3)
    sums.add([x, x, -2.5 * x @ rotation + 1])
    assert sums.cka().numpy() == pytest.approx(1, abs=1e-12)
    # the denominator that the paper prints, squared, would give something else than 1
    centered = (x - x.mean(0)).numpy()
    square = np.linalg.norm(centered.T @ centered, "fro") ** 2
    assert abs(square / square**2 - 1) > 0.5


def test_cka_agrees_with_numpy_in_chunks_and_through_kernels() -> None:
    parts = [draw(0, 60, 5) + 2, draw(1, 60, 9), draw(0, 60, 5) @ draw(2, 5, 8)]
    sums, kernels = cka.Grams(3), cka.Kernels(3, samples=60)
    for chunk in zip(*(p.split(17) for p in parts), strict=True):
        sums.add(chunk)
        kernels.add(chunk)
    expected = [[direct_cka(a.numpy(), b.numpy()) for b in parts] for a in parts]
    np.testing.assert_allclose(sums.cka(), expected, atol=1e-10)
    np.testing.assert_allclose(kernels.cka(), expected, atol=1e-10)
    fewer = cka.Kernels(3, samples=30)
    for chunk in zip(*(p.split(17) for p in parts), strict=True):
        fewer.add(chunk)
    assert fewer.samples == 30


def test_models_are_compared_layer_by_layer() -> None:
    # in float64: some CPUs round float32 otherwise in batches of 16 than in one of 40
    model = build("digitscnn", (1, 8, 8), 10).double()
    first = weights(model)
    second = first.map(lambda t: t + 0.1 * draw(t.numel(), *t.shape))
    x = draw(3, 40, 1, 8, 8)
    found = cka.similarity(model, {0: first, 3: second, 5: first}, x.split(16))
    assert list(found.layers) == ["extractor.0", "extractor.1", "extractor.2", "classifier"]
    for name, matrix in found.layers.items():
        assert matrix[0, 2] == pytest.approx(1, abs=1e-9)
        a, b = (activations(model, x, w)[name].reshape(40, -1).numpy() for w in (first, second))
        assert float(matrix[0, 1]) == pytest.approx(direct_cka(a, b), abs=1e-9)
    assert found.means()["classifier"] < 1
    assert found.samples["classifier"] == 40


def test_fifty_thousand_samples_of_seven_layers_fit_into_two_gigabytes() -> None:
    model = build("simplecnn", (3, 32, 32), 10)
    widths = {name: a.numel() for name, a in activations(model, torch.zeros(1, 3, 32, 32)).items()}
    assert len(widths) == 7
    plan = cka._plan(widths, models=10, kernel_samples=1000)
    assert all(isinstance(sums, cka.Grams) for sums in plan.values())  # all 50,000 samples, no layer cut short
    held = sum(8 * width**2 * 55 for width in widths.values())
    chunk = sum(widths.values()) * 10 * 256 * (4 + 8)  # activations of ten models, in single and in double precision
    assert held + chunk < 2e9
    wide = cka._plan({"narrow": 100, "wide": 100_000}, models=10, kernel_samples=1000)
    assert isinstance(wide["narrow"], cka.Grams)
    assert isinstance(wide["wide"], cka.Kernels)


# -- norms --------------------------------------------------------------------------------------------
def test_norms_and_how_they_follow_the_counts() -> None:
    model = Tree({"classifier.weight": torch.tensor([[3.0, 4.0], [0.0, 1.0]])})
    assert norms.classifier_norms(model).tolist() == [5, 1]
    counts = torch.tensor([[10.0, 0.0, 5.0]])
    assert norms.correlation(2 * counts + 1, counts) == pytest.approx(1)
    assert norms.correlation(-counts, counts) == pytest.approx(-1)
    assert norms.spread(torch.ones(4)) == 0
    with pytest.raises(BadInput, match="no weight vectors"):
        norms.classifier_norms(Tree({"extractor.weight": torch.zeros(1)}))


# -- separability and forecast --------------------------------------------------------------------------
def gaussians(distance: float, seed: int = 0) -> statistics.Statistics:
    y = torch.arange(600) % 3
    centers = distance * torch.eye(3, 4, dtype=torch.float64)
    return statistics.from_features(draw(seed, 600, 4) + centers[y], y, 4)


def test_separability_grows_with_the_distance_of_the_classes() -> None:
    near, far = (separability.sliced_wasserstein(gaussians(d)) for d in (1.0, 6.0))
    assert separability.mean_distance(near) < separability.mean_distance(far)
    assert far[3].isnan().all()  # an absent class is at no distance
    assert torch.equal(far[:3, :3], far[:3, :3].T)
    # two points at a distance: every slice is |cos| of it, and W2 is its root mean square, distance / sqrt(d)
    two = statistics.from_features(
        torch.tensor([[0.0] * 4, [2.0] + [0.0] * 3], dtype=torch.float64), torch.tensor([0, 1]), 2
    )
    found = separability.sliced_wasserstein(two, samples=2, projections=4000)[0, 1]
    assert float(found) == pytest.approx(2 / 4**0.5, rel=0.05)
    with pytest.raises(BadInput, match="at least two classes"):
        separability.sliced_wasserstein(statistics.from_features(draw(0, 5, 2), torch.zeros(5, dtype=torch.long), 2))


def test_the_forecast_sees_a_biased_head_and_leaves_a_good_one_alone() -> None:
    known = gaussians(6.0)
    model = build("mlp", (4,), 4, hidden=[4])
    good = Tree({"classifier.weight": 6.0 * torch.eye(4), "classifier.bias": torch.zeros(4)})
    biased = good.replace({"classifier.bias": torch.tensor([40.0, 0.0, 0.0, 0.0])})
    sound, sick = (separability.forecast(model, head, known, samples=200) for head in (good, biased))
    assert abs(sound.gain) < 2
    assert sick.gain > 20
    assert sick.reachable > 98
    assert sick.separability == sound.separability


# -- t-SNE and inversion ----------------------------------------------------------------------------------
def test_tsne_keeps_clusters_together() -> None:
    y = torch.arange(60) % 2
    place = embed.tsne(draw(0, 60, 5) * 0.1 + 20 * y[:, None], perplexity=10)
    centers = torch.stack([place[y == c].mean(0) for c in (0, 1)])
    nearest = torch.cdist(place, centers).argmin(1)
    assert torch.equal(nearest, y)
    with pytest.raises(BadInput, match="at least 4"):
        embed.tsne(draw(0, 3, 2))


def test_a_raw_feature_shows_more_than_a_mean_of_many() -> None:
    model = build("mlp", (1, 4, 4), 3, hidden=[64])
    x = draw(0, 30, 1, 4, 4).float()
    found = inversion.inversions(model, weights(model), x, numbers=(1, 30, 99), steps=200)
    assert list(found.numbers) == [1, 30]  # there are no 99
    raw, mean = found.errors()
    assert raw < 0.3
    assert mean > 2 * raw


# -- from a run folder ------------------------------------------------------------------------------------
def test_local_models_are_those_of_the_round(run: Path) -> None:
    trained = reopen(run, device="cpu")
    models = replay(fresh(trained), Loop(), [1, 2])
    again = fresh(trained)
    train_round(again.using(Loop()), 1)
    train_round(again.using(Loop()), 2)
    shares = torch.tensor([float(len(again.clients.federation.indices[k])) for k in models[2]], dtype=torch.float32)
    mean = sum(w["classifier.weight"] * s for w, s in zip(models[2].values(), shares / shares.sum(), strict=True))
    # FedAvg's model after round 2 is the mean of round 2's local models, and the one that the run ended with
    torch.testing.assert_close(mean, again.server["model"]["classifier.weight"])
    torch.testing.assert_close(mean, trained.simulation.server["model"]["classifier.weight"])
    before = trained.simulation.server["model"].clone()
    local_models(trained.simulation, Loop(), 3)
    assert (trained.simulation.server["model"] - before).sq() == 0


@pytest.mark.parametrize("classes", [3, 10, 15, 40])
def test_classes_in_the_plane_are_named_as_far_as_colors_can_be_told_apart(classes: int) -> None:
    names, label = [f"class {c}" for c in range(classes)], np.arange(60) % classes
    fig = plots.embeddings(draw(0, 60, 2).numpy(), {"truth": label, "after": label}, names)
    if classes > 20:
        assert len(fig.axes) == 3  # the third is the scale of the classes
        return
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    shown = [handle.get_color() for handle in legend.legend_handles]  # type: ignore[union-attr]  # they are lines
    assert len(set(shown)) == classes
    dots = fig.axes[0].collections[0]
    assert [tuple(c) for c in dots.to_rgba(dots.get_array())[:classes]] == shown


@pytest.mark.parametrize(
    "kind", quick(["cka", "norms", "separability", "embed", "inversion", "amounts", "virtual"], "norms")
)
def test_every_analysis_from_the_command_line(run: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind in ANALYSES
    assert call(["analyse", kind, str(run), "--samples", "40", "--device", "cpu", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers == json.loads((run / "analysis" / f"{kind}.json").read_text())
    assert (run / "analysis" / f"{kind}.png").stat().st_size > 1000
    if kind == "cka":
        (only,) = numbers.values()
        assert set(only["means"]) == {"extractor.1", "extractor.2", "classifier"}
        assert all(0 <= v <= 1 for v in only["means"].values())
    if kind == "inversion":
        assert len(numbers["classes"]) == 3  # as in the paper
        assert set(numbers["error"]) == {str(c) for c in numbers["classes"]}
    if kind in ("amounts", "virtual"):
        (only,) = numbers.values()
        assert only["features"][-1] == 40 or (kind == "amounts" and only["features"][-1] < 40)  # no class has more
        assert len(only["accuracy"]) == len(only["features"])
    if kind == "norms":
        assert set(numbers["rounds"]) == {"1", "3"}
        assert np.shape(numbers["rounds"]["1"]["norms"]) == np.shape(numbers["counts"])
        assert numbers["rounds"]["3"]["trained"] == "in an extra round after the run's 2 rounds"
        assert "trained" not in numbers["rounds"]["1"]
    if kind == "embed":
        assert np.shape(numbers["place"]) == (40, 2)


@pytest.mark.slow
def test_calibration_has_the_settings_of_the_runs_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    stage = ["stages=[ccvr, recalibrate]", "stage.ccvr.epochs=0", "stage.ccvr.tukey=real", "stage.recalibrate.epochs=0"]
    result = execute(RECIPE.override(stage), path, Compute(device="cpu", executor="loop"))
    look = ["--device", "cpu", "--json"]
    assert call(["analyse", "norms", str(path), *look]) == 0
    calibration = json.loads(capsys.readouterr().out)["calibration"]
    assert calibration["after"] == calibration["before"]  # no epochs of calibration, as the recipe says
    assert call(["analyse", "separability", str(path), "--samples", "40", *look]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found["ccvr"] == result["stages"]["ccvr"]["accuracy"] != found["before"]  # it transforms features
    assert found["whole_data"] == found["before"]
    assert call(["analyse", "embed", str(path), "--samples", "360", *look]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["accuracy_before"] == pytest.approx(result["accuracy"])
    assert numbers["accuracy_after"] == pytest.approx(result["stages"]["ccvr"]["accuracy"])


def test_forecast_from_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["analyse", "forecast", str(run), "--device", "cpu", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found["gain"] == pytest.approx(found["reachable"] - found["present"])


def test_mistakes_are_answered_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        (["analyse", "cak", str(run)], "did you mean 'cka'?"),
        (["analyse", "cka"], "needs a run"),
        (["analyse", "cka", str(tmp_path / "empty")], "needs a run"),
        (["analyse", "embed", str(run), str(shutil.copytree(run, tmp_path / "copy"))], "one run at a time"),
        (["analyse", "norms", str(run), "--rounds", "9"], "round 9 is not among the run's 1 … 2"),
        (["analyse", "norms", str(run), "--rounds", "x"], "whole numbers"),
        (["analyse", "norms", str(run), "--rounds", "2-1"], "rising spans"),
    ):
        assert call(arguments) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
