"""Features that are computed once: the same numbers as through the frozen extractor, and never out of date."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from simulations import make_simulation, make_world, run
from torch import nn

import fedhead as fh
from fedhead.core.system.errors import forward_errors
from fedhead.data.inputs.arrays import Samples
from fedhead.engine.clients.features import FeatureExtractor
from fedhead.engine.experiment.compute import Compute
from fedhead.models.module_digest import module_digest
from fedhead.recipes.recipe import load
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute


@pytest.fixture(scope="module")
def digits() -> fh.Federation:
    return fh.Federation.load("digits", "dirichlet(0.5)", clients=3, subset=120, client_test="matched")


def network() -> fh.SplitModel:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 12), nn.Tanh(), nn.Linear(12, 10))
    return fh.split(body, classifier="5")


@pytest.mark.parametrize(("method", "executor"), [("fedavg", "stack"), ("scaffold", "loop")])
def test_a_run_on_kept_features_gives_the_same(digits: fh.Federation, method: str, executor: str) -> None:
    settings: dict[str, Any] = {"freeze": ["extractor"], "lr": 0.1, "executor": executor}
    settings["stages"] = [fh.CCVR(samples=20, epochs=1), "ridge"]
    plain = fh.run(digits, network(), method, rounds=2, **settings)
    kept = fh.run(digits, network(), method, rounds=2, cache_features=True, **settings)
    for name, t in plain.server["model"].items():
        torch.testing.assert_close(kept.server["model"][name], t, atol=1e-5, rtol=0)
    assert kept.accuracy == plain.accuracy
    assert kept.personal == plain.personal
    assert kept.bytes_up == plain.bytes_up
    for name, stage in plain.stages.items():
        assert kept.stages[name].accuracy == pytest.approx(stage.accuracy, abs=0.5)
    x = digits.test.x[:5]  # type: ignore[union-attr,index]  # digits have a test set of images
    torch.testing.assert_close(torch.from_numpy(kept.scores(x)), torch.from_numpy(plain.scores(x)), atol=1e-4, rtol=0)
    assert kept.recipe.cache_features == "memory"


def test_in_double_precision_the_numbers_agree_to_1e_10(digits: fh.Federation) -> None:
    model = network()
    for p in model.extractor.parameters():
        p.requires_grad_(False)
    settings: dict[str, Any] = {"rounds": 2, "local": fh.LocalTraining(), "dtype": torch.float64}
    plain, kept = (
        run(make_simulation(digits, [model], fh.FedAvg(), cache_features=cache, **settings))
        for cache in (None, "memory")
    )
    for name, t in plain.server["model"].items():
        torch.testing.assert_close(kept.server["model"][name], t, atol=1e-10, rtol=0)


def test_kept_features_are_never_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    own = FeatureExtractor._compute

    def compute(self: FeatureExtractor, x: Any, advance: Any) -> torch.Tensor:
        computed.append(len(x))
        return own(self, x, advance)

    monkeypatch.setattr(FeatureExtractor, "_compute", compute)
    x, y = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8), torch.arange(6)
    model, transform = network(), fh.Transform((0.5,), (0.5,))

    def extract(model: fh.SplitModel, transform: fh.Transform, x: torch.Tensor) -> torch.Tensor:
        held = FeatureExtractor(model.eval(), transform, folder=tmp_path)(Samples(x, y)).x
        assert isinstance(held, torch.Tensor)
        with torch.no_grad():
            torch.testing.assert_close(held, model(transform(x)).h)
        return held

    first = extract(model, transform, x)
    assert torch.equal(extract(model, transform, x), first)
    assert len(computed) == 1  # found
    pixel = x.clone()
    pixel[3, 0, 2, 2] ^= 1
    extract(model, transform, pixel)
    extract(model, fh.Transform((0.4,), (0.5,)), x)
    with torch.no_grad():
        first_layer = model.extractor[0]  # type: ignore[index]  # a sequence
        first_layer.weight[0, 0, 0, 0] += 1e-3
    extract(model, transform, x)
    assert len(computed) == 4
    with torch.no_grad():  # two layers of one shape that change places are another extractor
        two = fh.split(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3)), "3")
        extract(two, transform, x)
        a, b = two.extractor[1].weight.clone(), two.extractor[2].weight.clone()  # type: ignore[index]  # as above
        two.extractor[1].weight.copy_(b)  # type: ignore[index]  # as above
        two.extractor[2].weight.copy_(a)  # type: ignore[index]  # as above
        extract(two, transform, x)
    assert len(computed) == 6
    resizing = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    flexible = fh.split(resizing, "3")
    extract(flexible, transform, x)
    extract(flexible, replace(transform, resize=12), x)
    assert len(computed) == 8


class Activated(nn.Module):
    """A layer whose printed form tells neither its activation nor its scale."""

    def __init__(self, activation: Any, scale: float):
        super().__init__()
        self.linear, self.activation, self.scale = nn.Linear(4, 3), activation, scale
        self.register_buffer("shift", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.activation(self.linear(x)) + self.shift


def test_a_change_of_code_or_settings_is_another_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Activated(torch.relu, 1.0)
    assert module_digest(copy.deepcopy(first)) == module_digest(first)
    others = [Activated(torch.tanh, 1.0), Activated(torch.relu, 2.0), Activated(torch.relu, 1.0)]
    for other in others:
        other.load_state_dict(first.state_dict())
    others[2].shift.fill_(1.0)  # type: ignore[operator]  # a tensor
    hooked = copy.deepcopy(first)
    hooked.register_forward_hook(lambda module, x, y: y + 1)
    seen = {module_digest(module) for module in (first, *others, hooked)}
    monkeypatch.setattr(Activated, "forward", lambda self, x: self.linear(x))
    assert len({*seen, module_digest(first)}) == 6


def test_settings_of_any_type_are_part_of_a_digest() -> None:
    def scaled(by: Any) -> nn.Module:
        layer = nn.Identity()
        layer.by = by
        return layer

    pairs = [
        (np.ones(2), np.zeros(2)),
        (np.float32(1), np.float32(2)),
        (Fraction(1, 2), Fraction(1, 3)),
        (Fraction(1, 2).limit_denominator, Fraction(1, 3).limit_denominator),
        (slice(1), slice(2)),
    ]
    for one, other in pairs:
        assert module_digest(scaled(one)) == module_digest(scaled(copy.deepcopy(one)))
        assert module_digest(scaled(one)) != module_digest(scaled(other)), one


def test_a_damaged_file_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Samples(torch.rand(4, 1, 8, 8), torch.arange(4))
    extract = FeatureExtractor(network(), fh.Transform(), folder=tmp_path)
    first = extract(held).x
    (file,) = tmp_path.iterdir()
    for damage in (lambda: file.write_bytes(b"nothing"), lambda: save_file({"features": torch.zeros(())}, file)):
        damage()
        assert torch.equal(extract(held).x, first)  # type: ignore[arg-type]  # one tensor
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(fh.BadInput, match="can't be written to"):
        replace(extract, folder=blocked / "in")(held)
    federation = fh.Federation.load("digits", "iid", clients=2, subset=20)
    with pytest.raises(fh.BadInput, match=r"^cache_features: .* can't be written to"):
        fh.extract_features(federation, "mlp(hidden=[4])", cache=blocked)

    def full(tensors: Any, path: Any, metadata: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("fedhead.core.tree.treefile.save_file", full)
    with pytest.raises(fh.BadInput, match=r"can't be written to: .* No space left on device"):
        replace(extract, folder=tmp_path / "new")(held)


def test_what_would_change_the_features_is_refused(digits: fh.Federation) -> None:
    def attempt(model: Any, federation: fh.Federation = digits, **settings: Any) -> None:
        fh.run(federation, model, rounds=1, cache_features=True, **settings)

    with pytest.raises(fh.BadInput, match=r"the extractor is trained.*freeze=\[extractor\]"):
        attempt(network())
    augmented = fh.Federation.load("digits", "iid", clients=2, subset=40, augment="flip")
    with pytest.raises(fh.BadInput, match="augment=none"):
        attempt(network(), augmented, freeze=["extractor"])
    for layer in (nn.BatchNorm1d(12), nn.Dropout(0.5)):
        changing = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), layer, nn.Linear(12, 10))
        with pytest.raises(fh.BadInput, match="other features in training"):
            attempt(fh.split(changing, "3"), freeze=["extractor"])
    with pytest.raises(fh.BadInput, match="2 architectures"):
        attempt([network(), network()], freeze=["extractor"])
    table = fh.Federation.from_arrays(torch.randn(20, 6), torch.arange(20) % 2, clients=2)
    with pytest.raises(fh.BadInput, match="both have 6 numbers"):
        attempt("mlp(hidden=[6])", table, freeze=["extractor"])


def test_features_of_a_federation(digits: fh.Federation, tmp_path: Path) -> None:
    model = network()
    found = fh.extract_features(digits, model, cache=tmp_path)
    assert found.input_shape == (12,)
    assert len(list(tmp_path.iterdir())) == 2
    with torch.no_grad():
        expected = model.eval()(digits.transform(digits.train.x)).z  # type: ignore[arg-type]  # one tensor
    torch.testing.assert_close(found.train.x, expected)
    ridge = fh.run(found, "mlp(hidden=[])", rounds=0, stages=["ridge"]).stages["ridge"]
    through = fh.run(digits, model, rounds=0, stages=["ridge"]).stages["ridge"]
    assert ridge.accuracy == through.accuracy
    assert ridge.personal == through.personal
    with pytest.raises(fh.BadInput, match="can't take inputs of shape"):
        fh.extract_features(fh.Federation.from_arrays(torch.randn(8, 3), torch.arange(8) % 2, clients=2), model)


def test_a_full_gpu_is_not_reported_as_wrong_inputs() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"), forward_errors("wrong inputs"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_a_run_folder_is_resumed_on_features_and_analysed_without_them(tmp_path: Path) -> None:
    words = ["clients=2", "subset=60", "model.hidden=[6]", "freeze=[extractor]", f"cache_features={tmp_path / 'kept'}"]
    whole = execute(load("digits", [*words, "rounds=2"]), tmp_path / "whole", Compute(executor="loop"))
    execute(load("digits", [*words, "rounds=1"]), tmp_path / "part", Compute(executor="loop"))
    longer = execute(load("digits", [*words, "rounds=2"]), tmp_path / "part", Compute(executor="loop"), resume=True)
    assert longer["accuracy"] == whole["accuracy"]
    assert len(list((tmp_path / "kept").iterdir())) == 2  # training and test samples, found again each time
    opened = reopen(tmp_path / "part")
    assert opened.simulation.clients.pool.x.dim() == 4  # type: ignore[union-attr]  # images, for the layers of the extractor
    assert opened.simulation.task.model.kept_width is None


def test_sites_keep_features_and_resize_as_a_simulation_does(tmp_path: Path) -> None:
    x = torch.randint(0, 256, (24, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) % 3
    held = fh.Federation.from_arrays(x, y, clients=2, test=(x[:9], y[:9]), layout="nchw", resize=8)
    model = fh.build("mlp(hidden=[5])", held.input_shape, 3)
    for p in model.extractor.parameters():
        p.requires_grad_(False)
    settings: dict[str, Any] = {"rounds": 2, "local": fh.LocalTraining(), "cache_features": "memory"}
    world = make_world(held, {"own": model}, fh.FedAvg(), settings, tmp_path)
    found = run(world.transport(world.grid()))
    expected = run(make_simulation(held, [model], fh.FedAvg(), **settings))
    through = run(make_simulation(held, [model], fh.FedAvg(), rounds=2, local=fh.LocalTraining()))
    assert found.accuracy == expected.accuracy == through.accuracy
    for name, t in expected.server["model"].items():
        torch.testing.assert_close(found.server["model"][name], t, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(through.server["model"][name], t, atol=1e-5, rtol=0)
