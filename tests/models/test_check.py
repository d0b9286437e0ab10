"""Check of modules: defects that keep one from being used, and those that are fixed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput
from fedhead.models import MODELS, SplitModel, build, weights
from fedhead.models.check import require_runnable
from fedhead.models.dropout import Dropout
from fedhead.models.repair import fix
from fedhead.models.wrap import split


def wrap(*layers: nn.Module, width: int = 6) -> SplitModel:
    """Layers between an input of 4 numbers and a classifier of 3, unmended."""
    return SplitModel(nn.Sequential(nn.Flatten(), *layers), nn.Linear(width, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"wrn56_4", "densenet121", "wordllama"}))
def test_registered_models_are_usable_everywhere(name: str) -> None:
    model = build(name, (3, 32, 32), 5)
    before = weights(model)
    require_runnable(model, (3, 32, 32), 5)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in weights(model).items()), "the check must leave no trace"


@pytest.mark.parametrize("head", ["normalized", "etf", "prototype"])
def test_every_head_is_usable(head: str) -> None:
    require_runnable(build("mlp", (4,), 3, head=head), (4,), 3)


def test_dropout_is_fixed() -> None:
    shared = nn.Dropout(0.25)
    planes = nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Dropout2d(0.5), nn.Flatten())
    model = wrap(nn.Linear(4, 6), shared, nn.ReLU(), shared, planes)
    fix(model)
    layers = model.extractor
    assert isinstance(layers[2], Dropout)
    assert layers[2] is layers[4], "a shared module stays shared"
    assert (layers[2].p, layers[2].channels, layers[5][1].channels) == (0.25, False, True)
    require_runnable(model, (4,), 3)


def test_batchnorm_without_statistics_or_momentum_is_refused() -> None:
    with pytest.raises(BadInput, match=r"track_running_stats=False.*make it True"):
        fix(wrap(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False)))
    with pytest.raises(BadInput, match=r"BatchNorm1d with momentum=None.*such as momentum=0.1"):
        fix(wrap(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None)))
    model = fix(wrap(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    require_runnable(model, (4,), 3)
    assert sorted(n.rsplit(".", 1)[1] for n in weights(model).buffers) == ["running_mean", "running_var"]


def test_batchnorm_over_several_processes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"extractor.2: SyncBatchNorm mixes the batches .*; use nn.BatchNorm2d"):
        require_runnable(fix(wrap(nn.Linear(4, 6), nn.SyncBatchNorm(6))), (4,), 3)


def test_mixed_precision_is_fixed() -> None:
    model = wrap(nn.Linear(4, 6), nn.ReLU())
    model.classifier.double()
    with pytest.raises(BadInput, match=r"several dtypes \(float32, float64\)"):
        require_runnable(model, (4,), 3)
    require_runnable(fix(model), (4,), 3)
    assert {p.dtype for p in fix(wrap(nn.Linear(4, 6)).half()).parameters()} == {torch.float32}
    require_runnable(fix(wrap(nn.Linear(4, 6))).double(), (4,), 3)  # float64 throughout is fine


def test_split_and_build_fix() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    model = split(net.double(), classifier="4")
    require_runnable(model, (4,), 3)
    assert isinstance(net[3], nn.Dropout), "the user's module is left alone"


def test_in_place_activations_and_tied_layers_are_fine() -> None:
    layer = nn.Linear(6, 6)
    model = wrap(nn.Linear(4, 6), nn.ReLU(inplace=True), layer, nn.Tanh(), layer)
    require_runnable(model, (4,), 3)


@pytest.mark.parametrize(
    ("model", "shape", "classes", "message"),
    [
        (wrap(nn.Linear(4, 6)), (5,), 3, r"does not take inputs of shape \(5,\) \(mat1 and mat2"),
        (wrap(nn.Linear(4, 6)), (4,), 7, "it has 3 outputs, the data needs 7"),
        (wrap(nn.Linear(4, 6), nn.Unflatten(1, (1, 6))), (4,), 3, r"extractor: .*\[2, 1, 6\].*flatten them"),
    ],
)
def test_what_nothing_can_run(model: SplitModel, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        require_runnable(model, shape, classes)


class Wandering(nn.Module):
    """Not traceable without data, and its `fc` is not the last word."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.first, self.fc, self.ends = nn.Linear(4, 6), nn.Linear(6, 3), ends

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 100:
            x = x / 2
        logits = self.fc(self.first(x).relu())
        return logits if self.ends else logits.softmax(dim=1)


def test_order_is_checked_where_tracing_fails() -> None:
    require_runnable(split(Wandering(ends=True)), (4,), 3)
    with pytest.raises(BadInput, match="the module does not apply it last"):
        require_runnable(split(Wandering(ends=False)), (4,), 3)
