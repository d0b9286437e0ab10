"""Users' modules in named parts, and weights in and out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput
from fedhead.models import build, classify, load, weights
from fedhead.models.wrap import split


class Net(nn.Module):
    """A user's network: a convolution, a hidden layer as projection, a classifier called fc."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 36, 8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(self.norm(self.conv(x)).relu().flatten(1)))


class Late(Net):
    """Something comes after the classifier."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(dim=1)


class Between(Net):
    """Something comes between projection and classifier."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu())


@pytest.mark.parametrize("projection", [None, "hidden"])
def test_split_computes_what_the_module_computes(projection: str | None) -> None:
    net = Net().eval()
    x = torch.randn(5, 1, 6, 6)
    model = split(net, projection=projection).eval()
    out = model(x)
    torch.testing.assert_close(out.logits, net(x))
    torch.testing.assert_close(classify(model, weights(model), out.z), net(x))
    assert out.h.shape == (5, 144 if projection else 8)
    assert out.z.shape == (5, 8)
    assert (model.features, model.classes, model.fixed) == (8, 3, frozenset())
    assert {name.split(".")[0] for name in weights(model)} == {"extractor", "classifier"} | (
        {"projection"} if projection else set()
    )


def test_split_leaves_the_module_alone() -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    model = split(net)
    model(torch.randn(4, 1, 6, 6))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert isinstance(net.fc, nn.Linear)
    assert all(torch.equal(t, net.state_dict()[name]) for name, t in before.items())


def test_split_finds_a_nested_classifier() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    x = torch.randn(3, 1, 2, 2)
    model = split(net, classifier="1.2")
    torch.testing.assert_close(model(x).logits, net(x))
    assert model(x).z.shape == (3, 6)


def test_frozen_layers_stay_fixed() -> None:
    net = Net()
    net.conv.requires_grad_(False)
    model = split(net)
    assert model.fixed == model.frozen == {"extractor.conv.weight", "extractor.conv.bias"}
    model.extractor.requires_grad_(True)
    model.classifier.requires_grad_(False)  # said later, it holds as well
    assert model.fixed == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize(
    ("net", "names", "message"),
    [
        (Net(), {"classifier": "fcc"}, r"no submodule 'fcc' to use as classifier: did you mean 'fc'\?"),
        (Net(), {"classifier": "zzz"}, r"did you mean 'fc'\? Linear layers: hidden, fc"),
        (Net(), {"projection": "hiden"}, r"to use as projection: did you mean 'hidden'\?"),
        (Net(), {"classifier": "conv"}, "is Conv2d, not linear: name a Linear layer"),
        (
            nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))),
            {"classifier": "1"},
            "is Sequential, not linear: name its Linear layer: classifier='1.1'",
        ),
        (Net(), {"classifier": "hidden"}, "'hidden' is not the last layer applied in Net"),
        (Late(), {}, "'fc' is not the last layer applied in Late"),
        (Between(), {"projection": "hidden"}, "'hidden' of Between does not feed classifier 'fc' directly"),
        (Net(), {"projection": "fc"}, "overlap"),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), {}, "It has no Linear layer"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), {"classifier": "1"}, "run one batch through it first"),
    ],
)
def test_split_refuses_with_the_reason(net: nn.Module, names: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        split(net, **names)


def test_split_refuses_a_classifier_that_is_tied_to_the_extractor() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    with pytest.raises(BadInput, match="tied to the extractor"):
        split(net, classifier="2")


def test_split_of_an_unused_classifier_is_refused() -> None:
    class Unused(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.hidden(self.conv(x).flatten(1))

    with pytest.raises(BadInput, match="never applied"):
        split(Unused())


def test_weights_carry_running_statistics_and_no_counters() -> None:
    w = weights(build("resnet20", (3, 32, 32), 10))
    assert all(name.rsplit(".", 1)[1] in ("running_mean", "running_var") for name in w.buffers)
    assert len(w.buffers) == 2 * (1 + 18 + 2)  # stem, two a block, two shortcuts
    assert not any("num_batches" in name for name in w)
    assert w.params.keys().isdisjoint(w.buffers)


def test_load_is_the_inverse_of_weights() -> None:
    ours, theirs = build("resnet20", (1, 8, 8), 4, seed=1), build("resnet20", (1, 8, 8), 4, seed=2)
    ours(torch.randn(4, 1, 8, 8))  # moves the running statistics
    w = weights(ours)
    load(theirs, w)
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(ours.eval()(x).logits, theirs.eval()(x).logits)
    with torch.no_grad():
        theirs.classifier.weight.zero_()
    assert w["classifier.weight"].abs().sum() > 0, "weights must be copies"


def test_load_refuses_another_architecture() -> None:
    small, large = build("mlp", (4,), 3, hidden=(5,)), build("mlp", (4,), 3, hidden=(6,))
    deep = build("mlp", (4,), 3, hidden=(5, 5))
    before = weights(small)
    with pytest.raises(BadInput, match=r"extractor.1.0.weight' is \(6, 4\), the model needs \(5, 4\)"):
        load(small, weights(large))
    with pytest.raises(BadInput, match=r"the model lacks 'extractor.2.0.bias' \(2 names differ\)"):
        load(small, weights(deep))
    with pytest.raises(BadInput, match="the weights lack"):
        load(deep, before)
    assert all(torch.equal(t, before[name]) for name, t in weights(small).items()), "nothing is half loaded"


def test_checkpoints_with_and_without_counters_are_loaded() -> None:
    model, other = build("resnet20", (3, 8, 8), 4), build("resnet20", (3, 8, 8), 4)
    plain = {name: torch.rand_like(value) for name, value in model.state_dict().items()}  # as safetensors gives it
    model.load_state_dict(plain)
    norm = next(name for name in plain if name.endswith("running_mean")).removesuffix("running_mean")
    other.load_state_dict({**plain, norm + "num_batches_tracked": torch.tensor(3)})
    for name, value in plain.items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(other.state_dict()[name], value)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict({**plain, "extractor.nothing": torch.zeros(1)})
