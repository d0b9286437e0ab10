"""A client whose features are far larger than the others' is left out: it would decide, or spoil, the head of all."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hostile import Attack, HostileSimulation, Models, honest
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.calibration import statistics_check
from fedhead.calibration.files import load_statistics
from fedhead.calibration.statistics import Statistics, from_features
from fedhead.calibration.sums import Kind
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import save_tree
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.executors.client.reply_set import ClientReply
from fedhead.methods import METHODS
from fedhead.stages.ccvr import CCVR
from fedhead.stages.fedcof import FedCOF
from fedhead.stages.lda import LDA
from fedhead.stages.ncm import NCM
from fedhead.stages.ridge import Ridge

LOCAL = LocalTraining(epochs=1, batch_size=8)
STAGES = [NCM(), FedCOF(), LDA(), Ridge(alpha=1.0), CCVR(samples=4, epochs=1, any_head=True)]


def features_times(factor: float) -> Attack:
    """Send the statistics of the features times a factor, which some features have."""
    powers = {"count": 0, "sum": 1, "outer": 2, "second_moment": 2}

    def scaled(sent: Tree) -> Tree:
        changed = {
            name: scaled(t) if isinstance(t, Tree) else t * factor ** powers[name]
            for name, t in sent.items()
            if name in powers or isinstance(t, Tree)
        }
        return sent.replace(changed)

    def attack(reply: ClientReply, server: Tree, seed: int, honest_models: Models) -> ClientReply:
        return reply._replace(send=scaled(reply.send)) if "statistics" in reply.send else reply

    return attack


def after(stage: Stage, attack: Attack) -> FinishedRun:
    kind = partial(HostileSimulation, hostile=[3], attack=attack)
    settings = {"rounds": 1, "local": LOCAL, "stages": [stage], "kind": kind}
    return run(make_simulation(federation(), [network("group")], METHODS["fedavg"](), **settings))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e6, 1e100])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_features_of_another_size_leave_out_their_client(stage: Stage, factor: float) -> None:
    record = after(stage, features_times(factor)).stages[stage.name].metrics
    assert list(record["failed"]) == ["3"]
    assert "features" in record["failed"]["3"]


def test_features_of_a_similar_size_count() -> None:
    assert "failed" not in after(NCM(), features_times(50.0)).stages["ncm"].metrics
    assert "failed" not in after(NCM(), honest).stages["ncm"].metrics


@pytest.mark.parametrize("kind", ["full", "diagonal", "pooled", "means"])
def test_features_too_large_to_compute_with_are_refused(kind: Kind) -> None:
    z, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 2

    def of(size: float) -> Statistics:
        return statistics_check.check(from_features(z * size, y, 2, kind), "a.safetensors")

    assert of(1e15).count.sum() == 20
    with pytest.raises(BadInput, match=r"^a.safetensors: features of size .* are too large to compute with"):
        of(1e20)


def test_the_size_of_features() -> None:
    z, y = torch.tensor([[3.0, 4.0], [-3.0, -4.0]]), torch.tensor([0, 0])
    sizes = {kind: statistics_check.feature_size(from_features(z, y, 2, kind)) for kind in ("full", "pooled", "means")}
    assert sizes == {"full": 5.0, "pooled": 5.0, "means": 0.0}


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_files_of_no_classes_or_features_are_refused_in_one_line(shape: tuple[int, int], tmp_path: Path) -> None:
    sums = Tree(count=torch.zeros(shape[0]).double(), sum=torch.zeros(shape).double())
    save_tree(tmp_path / "a", sums, {"holds": "class statistics"})
    with pytest.raises(BadInput, match="the sums are of other shapes"):
        load_statistics(tmp_path / "a")


def test_more_samples_than_can_be_counted_are_refused() -> None:
    many = torch.full((2,), 1e308, dtype=torch.float64)
    statistics = Statistics(many, torch.ones(2, 3).double(), torch.zeros(0).double())
    with pytest.raises(BadInput, match="too many to count"):
        statistics_check.check(statistics, "a")
