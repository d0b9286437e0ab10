"""Every architecture: its parameter count from arithmetic, its features, and training on a stack of clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedhead.models import MODELS, SplitModel, build, weights
from fedhead.models.architectures.mobilenetv2 import InvertedResidual
from fedhead.models.dropout import dropout_key


# -- arithmetic: what the forms imply, written without the models --------------------------------------------------
def conv(entering: int, leaving: int, kernel: int, groups: int = 1) -> int:
    """A convolution without bias, and its BatchNorm's scale and shift."""
    return entering // groups * leaving * kernel**2 + 2 * leaving


def biased(entering: int, leaving: int, kernel: int = 1) -> int:
    """A convolution or linear layer with bias."""
    return entering * leaving * kernel**2 + leaving


def basic_stage(entering: int, leaving: int, blocks: int, stride: int) -> int:
    first = conv(entering, leaving, 3) + conv(leaving, leaving, 3)
    shortcut = conv(entering, leaving, 1) if stride != 1 or entering != leaving else 0
    return first + shortcut + (blocks - 1) * 2 * conv(leaving, leaving, 3)


def cifar_resnet(n: int, k: int = 1, channels: int = 3) -> int:
    return (
        conv(channels, 16 * k, 3)
        + basic_stage(16 * k, 16 * k, n, 1)
        + basic_stage(16 * k, 32 * k, n, 2)
        + basic_stage(32 * k, 64 * k, n, 2)
    )


def resnet18(stem: int, channels: int = 3) -> int:
    return (
        conv(channels, 64, stem)
        + basic_stage(64, 64, 2, 1)
        + basic_stage(64, 128, 2, 2)
        + basic_stage(128, 256, 2, 2)
        + basic_stage(256, 512, 2, 2)
    )


def inverted(i: int, o: int, t: int, stride: int, kernel: int = 3, projects: bool = False, se: bool = False) -> int:
    e = t * i
    expand = conv(i, e, 1) if t > 1 or projects else 0
    shortcut = conv(i, o, 1) if projects and stride == 1 and i != o else 0
    squeeze = biased(e, e // 4) + biased(e // 4, e) if se else 0
    return expand + conv(e, e, kernel, groups=e) + squeeze + conv(e, o, 1) + shortcut


def mobilenetv2(projects: bool) -> int:
    # CCVR Table 7, block by block: (in, out, expansion, stride, repetitions)
    table = [(32, 16, 1, 1, 1), (16, 24, 6, 1, 1), (24, 24, 6, 1, 1), (24, 32, 6, 2, 1), (32, 32, 6, 1, 2)]
    table += [(32, 64, 6, 2, 1), (64, 64, 6, 1, 3), (64, 96, 6, 1, 1), (96, 96, 6, 1, 2), (96, 160, 6, 2, 1)]
    table += [(160, 160, 6, 1, 2), (160, 320, 6, 1, 1)]
    blocks = sum(times * inverted(i, o, t, s, projects=projects) for i, o, t, s, times in table)
    return conv(3, 32, 3) + blocks + conv(320, 1280, 1)


def efficientnet() -> int:
    table = [(32, 16, 1, 1, 3, 1), (16, 24, 6, 2, 3, 1), (24, 24, 6, 1, 3, 1), (24, 40, 6, 2, 5, 1)]
    table += [(40, 40, 6, 1, 5, 1), (40, 80, 6, 2, 3, 1), (80, 80, 6, 1, 3, 2), (80, 112, 6, 1, 5, 1)]
    table += [(112, 112, 6, 1, 5, 2), (112, 192, 6, 2, 5, 1), (192, 192, 6, 1, 5, 3), (192, 320, 6, 1, 3, 1)]
    blocks = sum(times * inverted(i, o, t, s, k, projects=True, se=True) for i, o, t, s, k, times in table)
    return conv(3, 32, 3) + blocks


def densenet121() -> int:
    # a norm stands before each convolution here: 2 per entering channel
    width, total = 64, 3 * 64 * 9
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            total += 2 * width + width * 128 + 2 * 128 + 128 * 32 * 9
            width += 32
        if block < 3:
            total += 2 * width + width * (width // 2)
            width //= 2
    return total + 2 * width


def shufflenetv2() -> int:
    total, before = conv(3, 24, 3), 24
    for width, units in ((116, 4), (232, 8), (464, 4)):
        h = width // 2
        total += conv(before, before, 3, groups=before) + conv(before, h, 1)  # the first unit's left branch
        total += conv(before, h, 1) + conv(h, h, 3, groups=h) + conv(h, h, 1)
        total += (units - 1) * (2 * conv(h, h, 1) + conv(h, h, 3, groups=h))
        before = width
    return total + conv(464, 1024, 1)


def simplecnn(channels: int, left: int) -> int:
    layers12 = biased(channels, 6, 5) + biased(6, 16, 5)
    return layers12 + biased(16 * left**2, 120) + biased(120, 84) + biased(84, 84) + biased(84, 256)


RGB, GRAY, DIGIT = (3, 32, 32), (1, 28, 28), (1, 8, 8)
# name, input, parameters of the architecture, extractor and projection, dimension of z
FORMS: list[tuple[str, tuple[int, ...], dict[str, Any], int, int]] = [
    ("mlp", DIGIT, {"hidden": (32, 16)}, biased(64, 32) + biased(32, 16), 16),
    ("simplecnn", RGB, {}, simplecnn(3, 5), 256),
    ("simplecnn", GRAY, {}, simplecnn(1, 4), 256),
    ("fedavgcnn", GRAY, {}, 1_663_370 - biased(512, 10), 512),  # the FedAvg paper's number, less the classifier
    ("digitscnn", DIGIT, {}, biased(1, 16, 3) + biased(16, 32, 3) + biased(32 * 4, 64), 64),
    ("resnet20", RGB, {}, cifar_resnet(3), 64),
    ("resnet20", DIGIT, {}, cifar_resnet(3, channels=1), 64),
    ("resnet20", RGB, {"norm": "group"}, cifar_resnet(3), 64),
    ("resnet32", RGB, {}, cifar_resnet(5), 64),
    ("resnet56", RGB, {}, cifar_resnet(9), 64),
    ("wrn56_4", RGB, {}, cifar_resnet(9, k=4), 256),
    ("resnet18", RGB, {}, resnet18(3), 512),
    ("resnet18", GRAY, {"stem": "7x7"}, resnet18(7, channels=1), 512),
    ("resnet18", RGB, {"stem": "7x7", "strides": (1, 4)}, resnet18(7), 512),
    ("mobilenetv2", RGB, {}, mobilenetv2(projects=False), 1280),
    ("mobilenetv2", RGB, {"form": "fedetf"}, mobilenetv2(projects=True), 1280),
    ("efficientnetb0", RGB, {}, efficientnet(), 320),
    ("densenet121", RGB, {}, densenet121(), 1024),
    ("shufflenetv2", RGB, {}, shufflenetv2(), 1024),
    # the published implementations' totals, less their 1000-class layer and the auxiliary outputs
    ("googlenet", RGB, {}, 6_624_904 - biased(1024, 1000), 1024),
    ("alexnet", RGB, {}, biased(3, 64, 3) + biased(64, 128, 3) + biased(128, 256, 3) + biased(2304, 512), 512),
    ("protocnn", GRAY, {"channels": 18}, biased(1, 10, 5) + biased(10, 18, 5) + biased(18 * 16, 50), 50),
    ("protocnn", GRAY, {"channels": 22}, biased(1, 10, 5) + biased(10, 22, 5) + biased(22 * 16, 50), 50),
]


def label(form: tuple[str, tuple[int, ...], dict[str, Any], int, int]) -> str:
    return "-".join([form[0], "x".join(map(str, form[1])), *map(str, form[2].values())])


def test_every_model_is_covered() -> None:
    pretrained = {"efficientnet_lite0", "wordllama"}  # in test_pretrained
    ours = {name for name in MODELS if not name.startswith("tests-")}  # other tests register theirs
    assert {form[0] for form in FORMS} == ours - pretrained


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=label)
def test_parameters_and_features(form: tuple[str, tuple[int, ...], dict[str, Any], int, int]) -> None:
    name, shape, params, count, features = form
    model = build(name, shape, 7, **params)
    assert weights(model).params.without("classifier").numel() == count
    assert weights(model).params.part("classifier").numel() == biased(features, 7)
    assert (model.features, model.classes) == (features, 7)
    out = model.eval()(torch.zeros(2, *shape))
    assert out.z.shape == (2, features)
    assert out.h.dim() == 2
    assert out.logits.shape == (2, 7)


def test_published_counts() -> None:
    """The arithmetic itself against totals that are printed elsewhere (1000 ImageNet classes, or 10 of CIFAR)."""
    assert resnet18(7) + biased(512, 1000) == 11_689_512
    assert shufflenetv2() + biased(1024, 1000) == 2_278_604
    assert mobilenetv2(projects=False) + biased(1280, 1000) == 3_504_872
    assert mobilenetv2(projects=True) + biased(1280, 10) == 2_296_922
    assert resnet18(3) + biased(512, 10) == 11_173_962
    assert densenet121() + biased(1024, 10) == 6_956_298
    assert cifar_resnet(3) + biased(64, 10) == 272_474


# -- training -------------------------------------------------------------------------------------------------------
def train(model: SplitModel, stacked: bool, params: Any, stats: Any, x: Tensor, key: Tensor) -> tuple[Any, Any, Tensor]:
    """The gradients, moved statistics and logits of one step, as the executors take it."""

    def step(params: Any, stats: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Any, Tensor]:
        moved = {name: t.clone() for name, t in stats.items()}
        with dropout_key(key):
            out = functional_call(model, {**params, **moved}, (x,))
        return out.logits.square().mean() + out.z.square().mean(), moved, out.logits

    leaves = {name: t.detach().requires_grad_() for name, t in params.items()}
    loss, moved, logits = (vmap(step) if stacked else step)(leaves, stats, x, key)
    gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
    return dict(zip(leaves, gradients, strict=True)), moved, logits


def agree(model: SplitModel, shape: tuple[int, ...], batch: int) -> None:
    """Two clients in a stack must come out as one after the other."""
    w = weights(model.double())
    two = {name: torch.stack([t, t * 1.05 + 0.01]) for name, t in w.items()}
    params = {name: t for name, t in two.items() if name not in w.buffers}
    stats = {name: t for name, t in two.items() if name in w.buffers}
    x = torch.randn(2, batch, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([5, 6])
    all_gradients, all_moved, all_logits = train(model, True, params, stats, x, keys)
    for k in range(2):
        mine = [{name: t[k] for name, t in part.items()} for part in (params, stats)]
        gradients, moved, logits = train(model, False, *mine, x[k], keys[k])
        torch.testing.assert_close(all_logits[k], logits, rtol=1e-8, atol=1e-10)
        for name, value in moved.items():
            torch.testing.assert_close(all_moved[name][k], value, rtol=1e-8, atol=1e-10)
            assert not torch.equal(value, mine[1][name]), f"{name} did not move"
        # BatchNorm over three values is ill-conditioned: measure by the largest gradient, not by each number's own
        largest = max(g.abs().max().item() for g in gradients.values())
        for name, value in gradients.items():
            torch.testing.assert_close(all_gradients[name][k], value, rtol=1e-6, atol=1e-8 * largest)
        assert gradients["classifier.weight"].abs().sum() > 0
        assert next(iter(gradients.values())).abs().sum() > 0, "no gradient reaches the first layer"


# seconds each; the quick tier has their count and their siblings
SLOW = {"wrn56_4", "densenet121", "mobilenetv2", "efficientnetb0", "googlenet", "resnet18", "resnet56"}


@pytest.mark.parametrize(
    "form", [pytest.param(f, id=label(f), marks=[pytest.mark.slow] if f[0] in SLOW else []) for f in FORMS]
)
def test_stack_equals_loop(form: tuple[str, tuple[int, ...], dict[str, Any], int, int]) -> None:
    name, shape, params, _, _ = form
    # three samples: with two, BatchNorm over a single pixel gives ±1 whatever comes in, and no gradient
    agree(build(name, shape, 7, **params), shape, batch=3)


def test_a_narrow_densenet_stacks() -> None:
    agree(build("densenet121", (3, 16, 16), 7, growth=4, blocks=(2, 2, 2, 2)), (3, 16, 16), batch=3)


@pytest.mark.parametrize("head", ["normalized", "etf", "prototype"])
def test_heads_stack_equals_loop(head: str) -> None:
    agree(build("digitscnn", DIGIT, 5, head=head), DIGIT, batch=4)


def test_keyed_dropout_stacks_inside_a_model() -> None:
    model = build("mlp", DIGIT, 5, hidden=(16,), norm="batch", dropout=0.5)
    agree(model, DIGIT, batch=4)


def test_feature_layer_lets_architectures_share_a_classifier() -> None:
    """FedClassAvg: h is the 512-d feature before the ReLU, z after it, and all start from one classifier."""
    models = [
        build("digitscnn", GRAY, 7, seed=3, feature_layer=512),
        build("alexnet", GRAY, 7, seed=3, feature_layer=512),
        build("resnet18", GRAY, 7, seed=3, feature_layer=512, stem="7x7"),
    ]
    for model in models:
        assert isinstance(model.classifier, nn.Linear)
        assert torch.equal(model.classifier.weight, models[0].classifier.weight)
        out = model.eval()(torch.randn(3, *GRAY, generator=torch.Generator().manual_seed(1)))
        assert out.h.shape == (3, 512)
        assert (out.h < 0).any()
        assert torch.equal(out.z, out.h.relu())
    # FedClassAvg's AlexNet: 2304 -> 512 -> ReLU -> 512
    extractor = weights(models[1]).params.part("extractor").numel()
    convolutions = biased(1, 64, 3) + biased(64, 128, 3) + biased(128, 256, 3)
    assert extractor == convolutions + biased(2304, 512) + biased(512, 512)


def test_efficientnet_doubles_the_output_of_strided_blocks_on_request() -> None:
    """FedETF's public code adds such a block's output to itself; names and shapes of the weights are the same."""
    plain, doubled = (build("efficientnetb0", RGB, 10, **words).eval() for words in ({}, {"doubled": True}))
    doubled.load_state_dict(plain.state_dict())
    pairs = [
        (a, b)
        for a, b in zip(plain.modules(), doubled.modules(), strict=True)
        if isinstance(a, InvertedResidual) and isinstance(b, InvertedResidual)
    ]
    strided = [a.shortcut is None for a, _ in pairs]
    assert (len(strided), sum(strided)) == (16, 4)
    for (a, b), strides in zip(pairs, strided, strict=True):
        x = torch.randn(2, next(a.parameters()).shape[1], 8, 8)
        torch.testing.assert_close(b(x), (2 if strides else 1) * a(x))


def test_fedproto_strides_meet_in_one_feature_size() -> None:
    """Strides (1, 4) and (2, 2) leave an 8x8 image of a 32x32 one, so that prototypes compare."""
    for strides in ((1, 4), (2, 2)):
        model = build("resnet18", RGB, 10, stem="7x7", strides=strides)
        stem = model.extractor[0]
        assert stem(torch.zeros(1, *RGB)).shape == (1, 64, 8, 8)


def test_googlenet_follows_the_published_sizes_on_small_images() -> None:
    model = build("googlenet", GRAY, 10).eval()
    assert model(torch.zeros(1, *GRAY)).z.shape == (1, 1024)


def test_resnet18_with_the_large_stem_starts_as_torchvision_s() -> None:
    """FedClassAvg's and FedProto's: normal weights of variance 2 / fan_out (He et al., 2015)."""
    model = build("resnet18", RGB, 10, stem="7x7")
    for conv_ in (m for m in model.extractor.modules() if isinstance(m, nn.Conv2d)):
        w = conv_.weight.detach()
        expected = (2 / (w.shape[0] * w[0, 0].numel())) ** 0.5
        assert w.std().item() == pytest.approx(expected, rel=0.05)
        assert w.abs().max() > 2.5 * expected, "a normal distribution has tails, a uniform one ends at 1.7 deviations"


def test_googlenet_starts_as_torchvision_s() -> None:
    """Normal weights of deviation 0.01, cut at two deviations, which leaves 0.0088."""
    for conv_ in (m for m in build("googlenet", RGB, 10).extractor.modules() if isinstance(m, nn.Conv2d)):
        assert conv_.weight.abs().max() <= 0.02
        assert conv_.weight.std().item() == pytest.approx(0.0088, rel=0.05)


@pytest.mark.parametrize("name", ["simplecnn", "digitscnn"])
def test_relu_after_pooling_is_relu_before_it_to_the_bit(name: str) -> None:
    draw = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x = draw.repeat_interleave(4, 2).repeat_interleave(4, 3)  # flat areas: windows of equal numbers, also below 0

    def outcome(model: nn.Module) -> list[Tensor]:
        logits = model(x).logits
        return [logits, *torch.autograd.grad(logits.logsumexp(1).sum(), list(model.parameters()))]

    model = build(name, RGB, 10)
    found = outcome(model)
    for layer in list(model.extractor.children())[:2]:
        assert isinstance(layer, nn.Sequential)
        assert [type(part) for part in layer] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
        layer[1], layer[2] = layer[2], layer[1]
    for mine, printed in zip(found, outcome(model), strict=True):
        assert torch.equal(mine, printed)
