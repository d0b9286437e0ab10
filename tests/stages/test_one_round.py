"""One round is enough: stages without rounds, in Python, from recipes, in run folders and over Flower's messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from simulations import make_simulation, make_world, run
from sklearn.linear_model import Ridge as SklearnRidge
from small import federation, network

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.methods.fedavg import FedAvg
from fedhead.recipes.recipe import Recipe
from fedhead.stages.recalibrate import features

HEADS = ["ncm", "ridge", "lda", "qda", "fedcof"]


@pytest.fixture(scope="module")
def digits() -> fh.Federation:
    return fh.Federation.load("digits", "dirichlet(0.1)", clients=8, client_test=0.2)


def test_heads_on_first_weights_equal_the_centralized_solution(digits: fh.Federation) -> None:
    result = fh.run(digits, "mlp(hidden=[24])", rounds=0, stages=["ridge", fh.LDA(), "qda", "ncm", "fedcof"])
    assert result.rows == []
    assert (result.accuracy, result.train_loss) == (None, None)
    for name in HEADS:
        found = result.stages[name]
        assert found.accuracy is not None
        assert found.accuracy > 50, name  # of features that nobody trained
        assert found.personal is not None
        assert found.metrics["participants"] == 8
    ridge = fh.run(digits, "mlp(hidden=[24])", rounds=0, stages=[fh.Ridge(alpha=2.0)]).stages["ridge"]
    clients = result.trained.clients
    assert clients.task.pool is not None
    assert result.weights is not None
    z, y = features(clients.task.model, result.weights, clients.task.pool)
    whole = SklearnRidge(alpha=2.0).fit(z.double().numpy(), torch.nn.functional.one_hot(y, 10).double().numpy())
    assert ridge.weights is not None
    torch.testing.assert_close(ridge.weights["classifier.weight"], torch.as_tensor(whole.coef_), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        ridge.weights["classifier.bias"], torch.as_tensor(whole.intercept_), rtol=1e-6, atol=1e-8
    )


@pytest.mark.slow
@pytest.mark.parametrize("head", ["etf", "normalized", "linear"])
def test_a_new_head_takes_the_place_of_any_classifier(digits: fh.Federation, head: str, tmp_path: Path) -> None:
    model = fh.build("mlp", digits.input_shape, 10, hidden=[12], head=head)
    result = fh.run(digits, model, rounds=0, stages=[fh.Ridge(alpha=1.0), fh.QDA(shrinkage=0.3)])
    x = digits.test.x[:50]  # type: ignore[union-attr,index]  # digits have a test set of images
    for name, kind in (("ridge", torch.nn.Linear), ("qda", fh.QuadraticHead)):
        module = result.module(stage=name)
        assert isinstance(module.classifier, kind)
        scores = torch.from_numpy(result.scores(x, stage=name))
        torch.testing.assert_close(module(digits.transform(x)), scores)  # type: ignore[arg-type]  # one tensor
        torch.testing.assert_close(torch.from_numpy(result.scores(x, client=1, stage=name)), scores)
        assert result.export(tmp_path / f"{name}.pt2", stage=name).exists()
        assert result.export(tmp_path / f"{name}.safetensors", stage=name).exists()


def test_a_users_module_gets_the_new_head_in_its_place(digits: fh.Federation) -> None:
    own = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10, bias=False)
    )
    result = fh.run(digits, fh.split(own, classifier="3"), rounds=0, stages=["lda", "qda"])
    x = digits.test.x[:20]  # type: ignore[union-attr,index]  # digits have a test set of images
    for name in ("lda", "qda"):
        module = result.module(stage=name)
        torch.testing.assert_close(module(digits.transform(x)), torch.from_numpy(result.scores(x, stage=name)))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_folder_without_rounds_is_loaded_resumed_and_extended(digits: fh.Federation, tmp_path: Path) -> None:
    settings = {"model": "mlp(hidden=[12])", "stages": ["ridge"], "lr": 0.1}
    first = fh.run(digits, rounds=0, out=tmp_path / "run", **settings)  # type: ignore[arg-type]  # as given
    again = fh.load(tmp_path / "run", federation=digits)
    assert again.finished
    assert again.stage_rows["ridge"]["accuracy"] == first.stages["ridge"].accuracy
    x = digits.test.x[:20]  # type: ignore[union-attr,index]  # digits have a test set of images
    assert (again.scores(x, stage="ridge") == first.scores(x, stage="ridge")).all()
    assert again.calibrate(fh.Ridge()).accuracy == first.stages["ridge"].accuracy
    longer = fh.run(digits, rounds=2, out=tmp_path / "run", resume=True, **settings)  # type: ignore[arg-type]  # as given
    plain = fh.run(digits, rounds=2, **settings)  # type: ignore[arg-type]  # as given
    assert longer.stages["ridge"].accuracy == plain.stages["ridge"].accuracy
    assert longer.accuracy == plain.accuracy


def test_the_command_line_runs_stages_without_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = "run"
    words = ["rounds=0", "model.hidden=[16]", "stages=[ridge, qda]", "stage.ridge.alpha=0.5", "--out", out, "--quiet"]
    assert call(["run", "digits", *words]) == 0, capsys.readouterr().err
    assert call(["report", out]) == 0, capsys.readouterr().err
    assert call(["run", "digits", "rounds=0"]) == 2
    assert "rounds: 0 trains nothing, and there is no stage either" in capsys.readouterr().err
    with pytest.raises(BadInput, match="rounds: -1 is out of range"):
        Recipe(dataset="digits", rounds=-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_without_rounds_flower_gives_the_same(name: str, tmp_path: Path) -> None:
    model, settings = network("batch"), {"rounds": 0, "local": LocalTraining()}
    stage = fh.STAGES[name]()
    world = make_world(federation(), {"own": model}, FedAvg(), settings, tmp_path, stages=[stage])
    found = run(world.transport(world.grid()), stages=[stage]).stages[name]
    expected = run(make_simulation(federation(), [model], FedAvg(), **settings), stages=[stage]).stages[name]
    assert found.accuracy == expected.accuracy
    assert found.personal == expected.personal
    for entry, t in expected.server.leaves().items():
        torch.testing.assert_close(found.server.leaves()[entry], t, atol=1e-6, rtol=1e-6)


def test_classes_that_nobody_holds_are_refused_before_the_rounds(digits: fh.Federation) -> None:
    cut = fh.Federation.from_arrays(torch.randn(30, 4), torch.arange(30) % 2, clients=3, classes=3)
    with pytest.raises(BadInput, match="lda: no client has a sample of class 2"):
        fh.run(cut, "mlp(hidden=[4])", rounds=0, stages=["lda"])
