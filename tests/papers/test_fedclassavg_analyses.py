"""The analyses of clients with models of their own, on a mixed federation and against plain computations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mixed import RECIPE
from scipy.stats import spearmanr

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.models.registry import build
from fedhead.papers.analyses.conductance import conductance, ranks, similarity
from fedhead.papers.analyses.personal import agreement, personal_models
from fedhead.papers.analyses.registry import ANALYSES, AnalysisOptions
from fedhead.runs.read_runs import load_run
from fedhead.runs.reopen import Trained, reopen
from fedhead.runs.run import execute


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    path = tmp_path_factory.mktemp("runs") / "run"
    execute(RECIPE.override(["evaluate_every=1"]), path, Compute(device="cpu", executor="loop"))
    return reopen(path, device="cpu")


def test_conductances_add_up_to_the_rise_of_the_logit() -> None:
    model = build("digitscnn", (1, 8, 8), 10, feature_layer=16)
    x, y = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4, 9])
    found = conductance(model, x, y, steps=400)
    assert found.shape == (3, 16)
    with torch.no_grad():
        rise = (model(x).logits - model(torch.zeros_like(x)).logits).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(found.sum(1).float(), rise, atol=5e-3, rtol=0)


def test_a_feature_that_the_classifier_does_not_use_has_no_conductance() -> None:
    model = build("mlp", (1, 8, 8), 10, feature_layer=6)
    with torch.no_grad():
        model.classifier.weight[:, 2] = 0
    found = conductance(model, torch.rand(1, 1, 8, 8), torch.tensor([1]))
    assert float(found[0, 2]) == 0.0
    assert found.abs().max() > 0


def test_rank_correlation_is_spearmans() -> None:
    g = torch.Generator().manual_seed(0)
    rows = {k: torch.randn(20, generator=g) for k in range(3)}
    pairs = [spearmanr(rows[a].numpy(), rows[b].numpy()).statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    assert similarity(rows) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert ranks(torch.tensor([3.0, -1.0, 2.0])).tolist() == [2, 0, 1]
    with pytest.raises(BadInput, match="only 1"):
        similarity({0: rows[0]})


def test_agreement_of_clients_that_mean_the_same_and_of_those_that_do_not() -> None:
    y = torch.arange(4).repeat(2)
    client = torch.arange(2).repeat_interleave(4)
    same = torch.eye(4).repeat(2, 1)
    assert agreement(same, y, client) == 100.0
    permuted = torch.cat([torch.eye(4), torch.eye(4)[[1, 2, 3, 0]]])
    assert agreement(permuted, y, client) == 0.0


def test_personal_models_are_the_clients_own_of_either_architecture(run: Trained) -> None:
    models = personal_models(run.simulation, 3)
    assert list(models) == run.simulation.clients.holders
    for client, model in models.items():
        own = run.simulation.states[client]["own"]
        assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())


def test_features_of_all_clients_lie_in_one_plane(run: Trained) -> None:
    report = ANALYSES["features"].run([run], AnalysisOptions(samples=60))
    (numbers,) = report.numbers.values()
    assert len(numbers["place"]) == len(numbers["class"]) == len(numbers["client"]) == 60
    assert set(numbers["client"]) == set(run.simulation.clients.holders)
    assert 0 <= numbers["neighbors_of_the_same_class"] <= 100
    assert len(report.figures[""].axes) == 4  # two planes, each with its scale


def test_conductance_compares_the_clients_that_are_right(run: Trained) -> None:
    (numbers,) = ANALYSES["conductance"].run([run], AnalysisOptions(samples=50)).numbers.values()
    models = personal_models(run.simulation, 3)
    test = run.simulation.test
    x = test.view(torch.tensor([numbers["sample"]]), None)
    right = [k for k, model in models.items() if int(model(x).logits.argmax()) == numbers["class"]]
    assert numbers["clients"] == right
    assert all(len(v) == 24 for v in numbers["conductance"].values())
    assert -1 <= numbers["rank_correlation"] <= 1
    assert numbers["one_model"] is False


def test_conductance_says_that_clients_share_one_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = RECIPE.override(["method=fedavg", "model=mlp(hidden=[8])", "rounds=1"])
    execute(recipe, tmp_path / "run", Compute(device="cpu", executor="loop"))
    with caplog.at_level("WARNING", logger="fedhead"):
        report = ANALYSES["conductance"].run([reopen(tmp_path / "run", device="cpu")], AnalysisOptions(samples=20))
    (numbers,) = report.numbers.values()
    assert (numbers["one_model"], numbers["rank_correlation"]) == (True, pytest.approx(1.0))
    assert "use one model (fedavg)" in caplog.text
    assert "(one model for all clients)" in report.figures[""].axes[0].get_title()


def test_curves_count_local_epochs(run: Trained) -> None:
    (numbers,) = ANALYSES["curves"].run([load_run(run.path)], AnalysisOptions()).numbers.values()
    assert numbers["epochs"] == [1, 2]
    last = json.loads((run.path / "result.json").read_text())
    assert numbers["mean"][-1] == pytest.approx(last["personal"])
    assert numbers["deviation"][-1] == pytest.approx(np.std(last["clients"], ddof=1))


def test_labels_are_the_federations_counts(run: Trained) -> None:
    (numbers,) = ANALYSES["labels"].run([load_run(run.path)], AnalysisOptions()).numbers.values()
    assert numbers["counts"] == run.simulation.clients.federation.counts().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["features", "conductance", "curves", "labels"])
def test_the_command_writes_numbers_and_a_figure(kind: str, run: Trained, tmp_path: Path) -> None:
    assert call(["analyse", kind, str(run.path), "--samples", "24", "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert json.loads((tmp_path / f"{kind}.json").read_text())
    assert (tmp_path / f"{kind}.png").stat().st_size > 1000
