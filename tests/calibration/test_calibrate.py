"""Calibration without a federated run: in Python, through files, and from the command line."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import fedhead
from fedhead import BadInput, Statistics
from fedhead.calibration import low_rank, statistics, sums
from fedhead.calibration.collect import fingerprint
from fedhead.cli import call
from fedhead.core.tree.treefile import save_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.models.split_model import SplitModel, weights
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute

COLLECT = ["statistics", "collect"]


class Net(nn.Module):
    """A plain PyTorch model that fedhead knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)


@pytest.fixture(scope="module")
def net(digits: tuple[Tensor, Tensor]) -> Net:
    """Trained on digits, then made to favor class 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits[0]), digits[1]).backward()
        optimizer.step()
    with torch.no_grad():
        model.head.bias[0] += 12
    return model


def accuracy(model: nn.Module, digits: tuple[Tensor, Tensor]) -> float:
    out = model(digits[0])
    return float(((out.logits if isinstance(model, SplitModel) else out).argmax(1) == digits[1]).float().mean())


def test_a_model_that_fedhead_did_not_train_is_calibrated_by_its_sites_statistics(
    net: Net, digits: tuple[Tensor, Tensor]
) -> None:
    model = fedhead.split(net, classifier="head")
    x, y = digits
    sites = [fedhead.statistics_of(model, x[k::3], y[k::3]) for k in range(3)]
    calibrated = fedhead.calibrate(model, iter(sites), "ccvr(lr=0.01, samples=200)")
    assert accuracy(model, digits) < 0.8
    assert accuracy(calibrated, digits) > 0.93
    before, after = weights(model), weights(calibrated)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    whole = fedhead.calibrate(model, fedhead.statistics_of(model, x, y, chunk=100), "ccvr(lr=0.01, samples=200)")
    torch.testing.assert_close(weights(whole)["classifier.weight"], after["classifier.weight"], atol=1e-5, rtol=1e-4)


def test_tukeys_transformation_travels_with_the_calibrated_model(net: Net, digits: tuple[Tensor, Tensor]) -> None:
    model = fedhead.split(net, classifier="head")
    known = fedhead.statistics_of(model, *digits)
    both = fedhead.calibrate(model, known, "ccvr(tukey=both, lr=0.01, samples=200)")
    virtual = fedhead.calibrate(model, known, "ccvr(tukey=virtual, lr=0.01, samples=200)")
    assert torch.equal(weights(both)["classifier.weight"], weights(virtual)["classifier.weight"])
    z = both.extractor(digits[0])
    torch.testing.assert_close(both(digits[0]).logits, virtual.classifier(z.clamp_min(0).sqrt()))
    with pytest.raises(BadInput, match="tukey=real"):
        fedhead.calibrate(model, known, "ccvr(tukey=real)")


def test_what_does_not_fit_is_refused(net: Net, digits: tuple[Tensor, Tensor]) -> None:
    model = fedhead.split(net, classifier="head")
    x, y = digits
    known = fedhead.statistics_of(model, x, y)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = fedhead.split(Net(), classifier="head")
    with pytest.raises(BadInput, match="another model: its weights differ"):
        fedhead.calibrate(other, known)
    with pytest.raises(BadInput, match="different model: the extractors' weights differ"):
        fedhead.calibrate(model, [known, fedhead.statistics_of(other, x, y)])
    narrow = statistics.from_features(
        torch.randn(20, 7, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10, 10
    )
    with pytest.raises(BadInput, match="10 classes and 7 features, the model 10 and 32"):
        fedhead.calibrate(model, narrow)
    with pytest.raises(BadInput, match=r"wrap it first, fedhead\.split"):
        fedhead.calibrate(net, known)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(BadInput, match="labels span 0 … 10"):
        fedhead.statistics_of(model, x[:2], torch.tensor([0, 10]))
    with pytest.raises(BadInput, match="as many labels as samples"):
        fedhead.statistics_of(model, x[:2], y[:3])


# -- files ------------------------------------------------------------------------------------------------
def test_files_hold_what_was_saved_and_nothing_that_could_run(
    tmp_path: Path, net: Net, digits: tuple[Tensor, Tensor]
) -> None:
    known = fedhead.statistics_of(fedhead.split(net, classifier="head"), *digits)
    path = tmp_path / "site.safetensors"
    fedhead.save_statistics(path, known)
    found = fedhead.load_statistics(path)
    assert all(torch.equal(a, b) for a, b in zip(found.tree().values(), known.tree().values(), strict=True))
    assert found.extractor == known.extractor
    with pytest.raises(BadInput, match=r"site\.safetensors: the statistics .* are in both: nobody is added twice"):
        fedhead.merge_files([path, path])


def test_files_of_low_rank_are_small_and_come_back_with_exact_diagonals(
    tmp_path: Path, net: Net, digits: tuple[Tensor, Tensor]
) -> None:
    known = fedhead.statistics_of(fedhead.split(net, classifier="head"), *digits)
    path, sizes, errors = tmp_path / "site.safetensors", [], []
    for rank in (0, 4, 32):
        sizes.append(fedhead.save_statistics(path, known, rank))
        assert path.stat().st_size < sizes[-1] + 2000
        found = fedhead.load_statistics(path)
        assert found.extractor == known.extractor
        assert torch.equal(found.count, known.count)
        torch.testing.assert_close(found.diagonal().outer, known.diagonal().outer)
        errors.append(float((found.covariance() - known.covariance()).norm()))
    assert sizes[0] < sizes[1] < known.tree().nbytes
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9
    fedhead.save_statistics(tmp_path / "whole.safetensors", known)
    merged = fedhead.merge_files([path, tmp_path / "whole.safetensors"])  # sites may select for themselves
    torch.testing.assert_close(merged.covariance(), (known + known).covariance())
    for rank, statistics_ in ((33, known), (-1, known), (2, known.diagonal())):
        with pytest.raises(BadInput, match=f"rank {rank} must be 0 … 32"):
            fedhead.save_statistics(path, statistics_, rank)
    odd = low_rank.to_low_rank(known, 2)
    save_tree(path, odd.replace(factor=odd["factor"][:, :, :5]), {"holds": "class statistics"})
    with pytest.raises(BadInput, match=r"don't match .*factor \(10, 2, 5\)"):
        fedhead.load_statistics(path)


def test_corrupt_and_foreign_files_are_refused_by_name(tmp_path: Path) -> None:
    z, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(30) % 3
    known = replace(statistics.from_features(z, y, 3), extractor="one")
    good = tmp_path / "good.safetensors"
    fedhead.save_statistics(good, known)
    whole = good.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-20])
    flipped = bytearray(whole)
    flipped[-5] ^= 0xFF
    (tmp_path / "flipped.safetensors").write_bytes(flipped)
    (tmp_path / "text.safetensors").write_text("hello")
    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    save_tree(tmp_path / "tree.safetensors", known.tree(), {})
    odd = known.tree().replace(outer=known.outer[:, :3])
    save_tree(tmp_path / "shapes.safetensors", odd, {"holds": "class statistics"})
    negative = known.tree().replace(count=-known.count)
    save_tree(tmp_path / "negative.safetensors", negative, {"holds": "class statistics"})
    for name, words in (
        ("cut", "cut"),
        ("flipped", "corrupt"),
        ("text", "can't be read"),
        ("foreign", "not one that this version of fedhead wrote"),
        ("tree", "holds no class statistics"),
        ("shapes", "don't match"),
        ("negative", "not negative"),
        ("missing", "there is no such file"),
    ):
        path = tmp_path / f"{name}.safetensors"
        with pytest.raises(BadInput, match=words) as error:
            fedhead.merge_files([good, path])
        assert f"{name}.safetensors" in str(error.value)
    fedhead.save_statistics(tmp_path / "other.safetensors", statistics.from_features(z[:, :3], y, 3))
    with pytest.raises(BadInput, match=r"other\.safetensors: statistics of a different model: features: 3 here, 4"):
        fedhead.merge_files([good, tmp_path / "other.safetensors"])
    scaled = replace(fedhead.load_statistics(good), transform="scaled")
    fedhead.save_statistics(tmp_path / "scaled.safetensors", scaled)
    with pytest.raises(BadInput, match=r"scaled\.safetensors: statistics of inputs that were transformed"):
        fedhead.merge_files([good, tmp_path / "scaled.safetensors"])


def test_nothing_is_written_where_statistics_are_unsound(tmp_path: Path) -> None:
    bad = Statistics(torch.tensor([1.0]), torch.tensor([[float("nan")]]), torch.tensor([[1.0]]))
    with pytest.raises(BadInput, match="not finite"):
        fedhead.save_statistics(tmp_path / "bad.safetensors", bad)
    assert list(tmp_path.iterdir()) == []


# -- speed --------------------------------------------------------------------------------------------------
def test_statistics_cost_little_beside_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 classes, d = 256: one pass, at most 1.3 times the operations of the forward pass alone."""
    model = fedhead.build("simplecnn", (3, 32, 32), 10)
    x, y = torch.zeros(1000, 3, 32, 32), torch.arange(1000) % 10
    monkeypatch.setattr(sums, "class_sums", sums._compute)  # nothing is counted inside a custom operator
    with FlopCounterMode(display=False) as alone, torch.no_grad():
        model.projection(model.extractor(x))
    with FlopCounterMode(display=False) as both:
        fedhead.statistics_of(model, x, y)
    outer_products = 2 * 1000 * 256**2
    assert alone.get_total_flops() + outer_products <= both.get_total_flops() <= 1.3 * alone.get_total_flops()


def test_a_thousand_clients_are_merged_in_seconds_and_in_the_memory_of_two() -> None:
    draw = torch.Generator().manual_seed(0)
    one = statistics.from_features(torch.randn(500, 256, generator=draw), torch.arange(500) % 10, 10)
    earlier: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def clients() -> Iterator[Statistics]:
        for _ in range(1000):
            alive.append(sum(ref() is not None for ref in earlier[-3:]))
            parts = [Statistics(one.count, one.sum, one.outer.clone())]
            earlier.append(weakref.ref(parts[0].outer))
            yield parts.pop()

    begin = time.process_time()
    merged = statistics.merge(clients())
    assert time.process_time() - begin < 30  # a second, on an idle machine
    assert torch.equal(merged.count, 1000 * one.count)
    torch.testing.assert_close(merged.mean(), one.mean())
    assert max(alive) == 0  # each part was let go before the next one was made: the total and one part at a time


# -- the command line ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("standalone") / "run"
    recipe = Recipe(
        dataset="digits", rounds=2, local_epochs=2, lr=0.05, batch_size=32, model_parameters={"hidden": [16]}
    )
    execute(recipe, path, Compute(device="cpu", executor="loop"))
    return path


def test_sites_and_server_from_the_command_line(
    tmp_path: Path,
    net: Net,
    digits: tuple[Tensor, Tensor],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = (t.numpy() for t in digits)
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())\n"
        "        self.head = nn.Linear(32, 10)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.body(x))\n"
    )
    save_file(net.state_dict(), "net.safetensors")
    torch.save(net.state_dict(), "net.pt")
    for k, (weights_file, named) in enumerate([("net.safetensors", "mynets:Net"), ("net.pt", "mynets.py:Net")]):
        np.savez(f"site{k}.npz", x=x[k::2], y=y[k::2])
        line = [*COLLECT, weights_file, f"site{k}.npz", "--out", f"s{k}.safetensors"]
        assert call([*line, "--model", named, "--classifier", "head"]) == 0, capsys.readouterr().err
    sites = ["--statistics", "s0.safetensors", "--statistics", "s1.safetensors"]
    line = ["calibrate", "net.safetensors", *sites, "--classifier", "head", "--stage", "ccvr(lr=0.01, samples=200)"]
    assert call([*line, "--out", "new.safetensors"]) == 0, capsys.readouterr().err
    assert "1797 samples" in capsys.readouterr().out
    new = load_file("new.safetensors")
    calibrated = Net()
    calibrated.load_state_dict(new)
    assert accuracy(calibrated, digits) > 0.93 > accuracy(net, digits)
    assert fingerprint(new, "head") == fingerprint(net.state_dict(), "head")

    for arguments, words in (
        (["calibrate", "net.safetensors", "--out", "a.safetensors"], "one thing to calibrate by"),
        ([*line[:6], "--classifier", "haed", "--out", "a.safetensors"], "no linear layer 'haed'"),
        (["calibrate", "none.pt", *sites, "--out", "a.safetensors"], "none.pt is not there"),
        (["calibrate", "mynets.py", *sites, "--out", "a.safetensors"], "can't be read as weights"),
        ([*COLLECT, "net.pt", "site0.npz", "--out", "a.safetensors"], "--model"),
        (
            [*COLLECT, "net.pt", "none.npz", "--model", "mynets:Net", "--out", "a.safetensors"],
            "none.npz is not",
        ),
        ([*COLLECT, "net.pt", "site0.npz", "--model", "mynets:Nat", "--out", "a.safetensors"], "Nat"),
        (
            [*COLLECT, "net.pt", "site0.npz", "--model", "mynet:Net", "--out", "a.st"],
            "there is no module 'mynet'",
        ),
        (
            [*COLLECT, "net.pt", "site0.npz", "--model", "my.py:Net", "--out", "a.st"],
            "there is no file my.py in",
        ),
    ):
        assert call(arguments) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
    assert not Path("a.safetensors").exists()


@pytest.mark.slow
def test_a_run_folder_is_calibrated(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "calibrated.safetensors"
    assert call(["calibrate", str(run), "--out", str(out), "--stage", "ccvr(samples=100)"]) == 0, (
        capsys.readouterr().err
    )
    assert set(load_file(out)) >= {"classifier.weight", "classifier.bias", "extractor.1.0.weight"}
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "site.npz", x=np.rint(x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8), y=y)
    site = str(tmp_path / "site.safetensors")
    assert call([*COLLECT, str(run), str(tmp_path / "site.npz"), "--out", site, "--kind", "diagonal"]) == 0
    assert call(["calibrate", str(run), "--statistics", site, "--out", str(out), "--stage", "ccvr(samples=100)"]) == 0
    capsys.readouterr()
    few = np.flatnonzero(y != 3).tolist() + np.flatnonzero(y == 3)[:4].tolist()  # the sum of one sample is that sample
    np.savez(tmp_path / "few.npz", x=np.rint(x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)[few], y=y[few])
    assert call([*COLLECT, str(run), str(tmp_path / "few.npz"), "--out", site]) == 0
    assert "left out: classes 3, with fewer than 5 samples each" in capsys.readouterr().out
    assert not fedhead.load_statistics(site).outer[3].any()
    assert call([*COLLECT, str(run), str(tmp_path / "few.npz"), "--out", site, "--min-class-count", "4"]) == 0
    assert float(fedhead.load_statistics(site).count[3]) == 4
    capsys.readouterr()
    low = ["--kind", "low-rank", "--rank", "2"]
    assert call([*COLLECT, str(run), str(tmp_path / "site.npz"), "--out", site, *low]) == 0
    assert f"{8 * 10 * (1 + 16 + 16 + 2 * 16):,} bytes" in capsys.readouterr().out
    assert call(["calibrate", str(run), "--statistics", site, "--out", str(out), "--stage", "ccvr(samples=100)"]) == 0
    assert call(["calibrate", str(run), "--data", str(tmp_path / "site.npz"), "--out", str(out)]) == 0
    np.savez(tmp_path / "odd.npz", x=np.zeros((3, 5, 5), np.uint8), y=[0, 1, 2])
    capsys.readouterr()
    assert call([*COLLECT, str(run), str(tmp_path / "odd.npz"), "--out", site]) == 2
    assert "can't take inputs of shape (1, 5, 5)" in capsys.readouterr().err


def test_a_run_with_another_head_is_calibrated_by_its_own_rule_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibrated.safetensors"
    for head, code in (("normalized", 0), ("etf", 2)):
        recipe = Recipe(dataset="digits", rounds=1, model_parameters={"hidden": [16], "head": head})
        execute(recipe, tmp_path / head, Compute(device="cpu", executor="loop"))
        few = ["--stage", "ccvr(samples=20, epochs=1)"]
        assert call(["calibrate", str(tmp_path / head), "--out", str(out), *few]) == code
    assert "ETFHead" in capsys.readouterr().err


def test_arrays_give_what_tensors_give(net: Net, digits: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = fedhead.split(net, classifier="head"), digits
    expected = fedhead.statistics_of(model, x, y)
    found = fedhead.statistics_of(model, x.numpy(), y.numpy().astype(np.int32))
    assert torch.equal(found.sum, expected.sum)
    assert torch.equal(found.count, expected.count)


def test_weights_and_places_that_are_of_no_use_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.pt").write_bytes(b"garbage")
    np.savez(tmp_path / "site.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)
    words = [*COLLECT, str(tmp_path / "net.pt"), str(tmp_path / "site.npz"), "--model", "mlp", "--out"]
    assert call([*words, str(tmp_path / "new" / "o.safetensors")]) == 2
    said = capsys.readouterr().err
    assert "net.pt can't be read as weights: save model.state_dict() alone, or anew" in said
    assert "weights_only" not in said  # torch advises to load it unsafely
    assert call([*words, str(tmp_path / "net.pt" / "o.safetensors")]) == 2
    assert "net.pt can't keep the file: it is no folder" in capsys.readouterr().err
    assert call([*words, str(tmp_path)]) == 2
    assert "is a folder: give the name of a file" in capsys.readouterr().err
