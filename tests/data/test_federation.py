"""Federations: from what users hold, checked; local test sets; partitions on disk."""

import io
import os
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.data.federation.federation import Federation, Samples
from fedhead.data.partitions import client_test_sets, partition_file
from fedhead.data.transforms.augment import Transform


def arrays(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), np.arange(n) % classes


@pytest.mark.parametrize("shape", [(20, 8, 8), (20, 8, 8, 1), (20, 1, 8, 8), (20, 8, 8, 3), (20, 3, 8, 8)])
@pytest.mark.parametrize("as_torch", [False, True])
def test_images_of_any_layout(shape, as_torch):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    y = np.arange(20) % 2
    fed = Federation.from_arrays(*(map(torch.from_numpy, (x, y)) if as_torch else (x, y)), clients=2)
    channels = 3 if 3 in shape else 1
    assert fed.input_shape == (channels, 8, 8)
    assert fed.train.x.dtype == torch.uint8
    assert fed.train.y.dtype == torch.int64
    image = x[4].reshape(8, 8) if channels == 1 else (x[4].transpose(2, 0, 1) if shape[-1] == 3 else x[4])
    assert np.array_equal(fed.train.x[4].squeeze().numpy(), image)


def test_features_become_float32_and_are_not_normalized():
    fed = Federation.from_arrays(
        np.random.default_rng(0).random((30, 5)), np.arange(30) % 3, "dirichlet(0.5)", clients=3
    )
    assert fed.train.x.dtype == torch.float32
    assert fed.transform == Transform()
    assert fed.partition == "dirichlet(0.5)"


def test_bytes_as_labels_are_words():
    y = np.array([b"dog", b"cat", b"dog"])
    assert Federation.from_arrays(np.zeros((3, 2)), y, clients=1).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x, y: Federation.from_arrays(x, y, clients="4"), "clients: '4' is not a whole number"),
        (lambda x, y: Federation.from_arrays(x, y, clients=2.5), r"clients: 2\.5 is not a whole number"),
        (lambda x, y: Federation.from_arrays(x, y, "dirichlet(a)", clients=2), "alpha: 'a' is not a number"),
        (lambda x, y: Federation.from_arrays([[[1, 2]], [[3]]], [0, 1]), "training x .* differ in shape"),
        (lambda x, y: Federation.from_clients([x, x]), r"client 0 is ndarray: give a pair \(x, y\)"),
        (lambda x, y: Federation.from_dataset("digits"), r"are for fedhead\.Federation\.load\('digits'\)"),
        (lambda x, y: Federation.from_arrays(x, y, 0.1), r"partition is the number 0\.1: .* 'dirichlet\(0\.1\)'"),
        (lambda x, y: Federation.from_dataset([1, 2]), r"must yield \(sample, label\) pairs"),
    ],
)
def test_things_of_the_wrong_kind_are_refused(make, says):
    with pytest.raises(BadInput, match=says):
        make(np.zeros((8, 2)), np.arange(8) % 2)


def test_words_as_labels():
    fed = Federation.from_arrays(
        np.zeros((4, 2)), ["dog", "cat", "dog", "owl"], clients=2, test=(np.zeros((1, 2)), ["owl"])
    )
    assert fed.class_names == ("cat", "dog", "owl")
    assert fed.train.y.tolist() == [1, 0, 1, 2]
    assert fed.test.y.tolist() == [2]
    with pytest.raises(BadInput, match="'bee'"):
        Federation.from_arrays(np.zeros((2, 2)), ["a", "b"], clients=1, test=(np.zeros((1, 2)), ["bee"]))


def test_counts_add_up():
    x, y = arrays()
    fed = Federation.from_arrays(x, y, "dirichlet(0.3)", 5, seed=1)
    assert fed.counts().shape == (5, 3)
    assert fed.counts().sum(axis=0).tolist() == [20, 20, 20]
    assert fed.counts().sum(axis=1).tolist() == list(fed.sizes)


NAN = np.array([[0.0, 1.0], [np.nan, 0.0]])


@pytest.mark.parametrize(
    ("x", "y", "settings", "says"),
    [
        (NAN, [0, 1], {}, "NaN or infinite numbers, first in sample 1"),
        (np.full((2, 2), np.inf), [0, 1], {}, "NaN or infinite"),
        (np.zeros((2, 2)), [0, 1, 1], {}, "2 samples but y has 3 labels"),
        (np.zeros((0, 2)), [], {}, "empty"),
        (np.zeros(4), [0, 1, 0, 1], {}, "one row per sample"),
        (np.zeros((2, 2)), [0, 5], {"classes": 3}, "label 5 is outside the 3 classes"),
        (np.zeros((2, 2)), [0, -1], {"classes": 3}, "label -1 is outside"),
        (np.zeros((2, 2)), [0.5, 1], {}, "0.5, labels must be whole"),
        (np.zeros((2, 2)), np.eye(2), {}, "argmax"),
        (np.zeros((2, 2)), [0, 1], {"clients": 3}, "3 clients can't share 2 samples"),
        (np.zeros((2, 2)), [0, 1], {"classes": 0}, "classes: 0"),
        (np.full((2, 4, 4), 300), [0, 1], {"layout": "nhw"}, "pixels 300 … 300, images are 0 … 255"),
        (np.zeros((2, 2), complex), [0, 1], {}, "array of numbers"),
        (np.zeros((2, 2)), [0, 1], {"test": (np.zeros((1, 3)), [0])}, "do not match"),
        (
            np.zeros((2, 2)),
            [0, 1],
            {"test": (np.zeros((1, 2)), [4]), "classes": 2},
            "test y: label 4 is outside the 2 classes",
        ),
        (np.zeros((2, 2)), [0, 1], {"client_test": "matched"}, "there is none"),
        (np.zeros((2, 2)), [0, 1], {"client_test": 1.5}, "share: 1.5 is out of range"),
        (np.zeros((2, 2)), [0, 1], {"client_test": "half"}, "client_test 'half' is unknown: write a share"),
        (np.zeros((2, 2)), [0, 1], {"transform": Transform.named("flip")}, "is for images"),
    ],
)
def test_wrong_data_is_refused(x, y, settings, says):
    with pytest.raises(BadInput, match=says):
        Federation.from_arrays(x, y, **{"clients": 1, **settings})


def test_a_share_is_held_out_for_testing():
    x, y = arrays(100)
    fed = Federation.from_arrays(x, y, "dirichlet(0.5)", clients=4, test=0.2)
    assert (len(fed.test.y), len(fed.train.y), fed.client_test) == (20, 80, None)
    assert np.bincount(fed.test.y).tolist() == [7, 7, 6]
    everything = torch.cat([fed.train.x, fed.test.x]).flatten(1).numpy()
    assert len(np.unique(everything, axis=0)) == 100
    for wrong, says in ((1.2, "test: 1.2 is out of range"), (0.001, "leaves one part empty"), ("a", "test is str")):
        with pytest.raises(BadInput, match=says):
            Federation.from_arrays(x, y, clients=4, test=wrong)


def test_groups_are_clients_and_hold_their_share_out():
    x, y = arrays(60)
    groups = np.array(["north", "south", "east"])[np.arange(60) // 20]
    fed = Federation.from_arrays(x, y, groups=groups, test=0.25, seed=3)
    assert fed.client_names == ("east", "north", "south")
    assert fed.sizes == (15, 15, 15)
    assert fed.client_test_from == "test"
    assert np.array_equal(np.sort(np.concatenate(fed.client_test)), np.arange(15))
    own = {image.tobytes() for image in fed.test.x[fed.client_test[1]].numpy()}
    assert own <= {image.tobytes() for image in x[:20].transpose(0, 3, 1, 2)}  # of the north
    same = Federation.from_clients(
        {"east": (x[40:], y[40:]), "north": (x[:20], y[:20]), "south": (x[20:40], y[20:40])}, test=0.25, seed=3
    )
    assert torch.equal(fed.train.x[fed.indices[2]], same.train.x[same.indices[2]])
    assert fed.with_client_test(None).counts().sum() == 45
    for settings, says in (
        ({"groups": groups[:5]}, r"groups has shape \(5,\), there are 60 samples"),
        ({"groups": groups, "clients": 4}, "the data has 3 groups, not 4"),
        ({"groups": groups, "partition": "iid"}, "groups: they decide the clients"),
        (
            {"groups": np.arange(60) % 3, "group_names": ["a", "b"]},
            "holds '2', which is none of the clients 0, 1",
        ),
        ({"groups": groups, "group_names": ["a", "b", "a"]}, "group_names: two of a, b, a are the same"),
        ({"groups": [None] * 60}, "groups names no client for sample 0"),
        ({"groups": np.arange(60) / 7}, "groups holds float64: number the clients"),
        ({"groups": np.zeros((60, 3))}, r"groups has shape \(60, 3\), there are 60 samples: name one client for each"),
    ):
        with pytest.raises(BadInput, match=says):
            Federation.from_arrays(x, y, **settings)


def test_clients_keep_their_own_samples():
    x, y = arrays(30)
    fed = Federation.from_clients([(x[:10], y[:10]), (x[10:10], y[10:10]), (x[10:], y[10:])], test=(x[:3], y[:3]))
    assert fed.sizes == (10, 0, 20)
    assert fed.partition == "natural"
    assert np.array_equal(fed.train.y[fed.indices[2]].numpy(), y[10:])
    words = Federation.from_clients([(x[:2], ["b", "a"]), (x[2:4], ["c", "a"])])
    assert words.class_names == ("a", "b", "c")
    assert words.train.y.tolist() == [1, 0, 2, 0]
    with pytest.raises(BadInput, match="client 1 holds"):
        Federation.from_clients([(x[:2], y[:2]), (x[:2, :4], y[:2])])
    with pytest.raises(BadInput, match="no client has any samples"):
        Federation.from_clients([])


# -- local test sets ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rule",
    [
        client_test_sets.Fraction(0.3),
        client_test_sets.Fraction(0.25, stratified=True),
        client_test_sets.Matched(),
        client_test_sets.Matched(500),
    ],
    ids=str,
)
def test_local_tests_are_written_as_they_are_read(rule):
    assert client_test_sets.parse(str(rule)) == rule
    assert client_test_sets.parse(rule) is rule


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (0, "share: 0 is out of range, it must be above 0 and below 1"),
        (1.0, "share: 1.0 is out of range"),
        ("stratified(1)", "share: 1 is out of range"),
        ("stratified", r"share is missing, write stratified\(share\)"),
        ("matched(0)", "at least 1"),
        ("matched(0.5)", "size: 0.5 is not a whole number"),
        ("matched(500", "can't be read"),
        ("0.3)", "can't be read"),
        ("-0.3", "share: -0.3 is out of range"),
        ("", "is unknown: write a share such as 0.3"),
        (True, "share: True is not a number"),
    ],
)
def test_wrong_local_tests_are_refused(text, says):
    with pytest.raises(BadInput, match=says):
        client_test_sets.parse(text)


@given(st.integers(0, 60), st.floats(0.01, 0.99), st.booleans(), st.integers(0, 9))
def test_a_fraction_splits_a_client_in_two(n, share, stratified, client):
    y = np.random.RandomState(0).randint(0, 4, 100)
    rows = np.sort(np.random.RandomState(1).permutation(100)[:n])
    rule = client_test_sets.Fraction(share, stratified)
    train, test = rule.split(rows, y, client)
    assert np.array_equal(np.sort(np.concatenate([train, test])), rows)
    assert len(test) == min(int(share * n), max(n - 1, 0))
    again = rule.split(rows, y, client)
    assert np.array_equal(again[1], test)
    if stratified and len(test):
        exact = np.bincount(y[rows], minlength=4) * len(test) / n
        assert np.abs(np.bincount(y[test], minlength=4) - exact).max() <= 1


def test_seeds_and_clients_draw_local_tests_of_their_own():
    y, rows, counts = np.arange(90) % 3, np.arange(90), np.full(3, 30)
    for draw in (
        lambda seed, client: client_test_sets.Fraction(0.3).split(rows, y, random.key(seed, client))[1],
        lambda seed, client: client_test_sets.Fraction(0.3, True).split(rows, y, random.key(seed, client))[1],
        lambda seed, client: client_test_sets.Matched(30).draw(counts, 90, y, seed, client),
    ):
        assert len({tuple(draw(seed, client)) for seed in range(3) for client in range(3)}) == 9


def test_fedetf_local_test_sets_are_taken_from_training():
    x, y = arrays(100)
    fed = Federation.from_arrays(x, y, clients=4, client_test=0.3)
    assert fed.client_test_from == "train"
    assert [len(r) for r in fed.client_test] == [7] * 4  # int(0.3 · 25)
    assert fed.sizes == (18,) * 4
    together = np.sort(np.concatenate([*fed.indices, *fed.client_test]))
    assert np.array_equal(together, np.arange(100))


def test_matched_local_test_sets_follow_the_clients_classes():
    x, y = arrays(600)
    xt, yt = arrays(300, seed=1)
    fed = Federation.from_arrays(x, y, "dirichlet(0.3)", 5, (xt, yt), seed=2, client_test="matched(50)")
    assert fed.client_test_from == "test"
    assert fed.sizes == Federation.from_arrays(x, y, "dirichlet(0.3)", 5, seed=2).sizes
    for rows, counts in zip(fed.client_test, fed.counts(), strict=True):
        assert len(set(rows.tolist())) == len(rows) == 50
        assert np.abs(np.bincount(yt[rows], minlength=3) / 50 - counts / counts.sum()).max() <= 1 / 50
    default = fed.with_client_test("matched")
    assert sum(map(len, default.client_test)) == pytest.approx(300, abs=5)


def test_matched_for_clients_without_samples_and_classes_without_tests():
    rule = client_test_sets.Matched()
    assert len(rule.draw(np.zeros(3, np.int64), 10, np.array([0, 1, 2]), 0, 0)) == 0
    assert rule.draw(np.array([0, 0, 5]), 10, np.array([0, 1, 1]), 0, 0).tolist() == []
    assert rule.draw(np.array([1, 0, 0]), 1000, np.array([0, 1, 2]), 0, 0).tolist() == [0]  # one sample at least


# -- subsets and files ----------------------------------------------------------------------------
def test_subset_keeps_clients_and_classes():
    x, y = arrays(120)
    fed = Federation.from_arrays(x, y, clients=4, client_test=0.25)
    small = fed.subset(30)
    assert np.bincount(small.train.y).tolist() == [10, 10, 10]
    assert sum(small.sizes) + sum(map(len, small.client_test)) == 30
    for k in range(4):
        own = {fed.train.x[r].numpy().tobytes() for r in fed.indices[k]}
        assert all(small.train.x[r].numpy().tobytes() in own for r in small.indices[k])


@pytest.mark.parametrize("client_test", [None, 0.3, "matched"])
def test_a_partition_is_recorded(tmp_path, client_test):
    x, y = arrays()
    fed = Federation.from_arrays(x, y, "dirichlet(0.05)", 6, (x, y), seed=4, client_test=client_test)
    fed.save_partition(tmp_path / "partition.npz", extra=np.arange(3))
    with np.load(tmp_path / "partition.npz") as held:
        stored = {name: held[name] for name in held.files}
    assert str(stored["partition"]) == "dirichlet(0.05)"
    rows = np.split(stored["indices"], stored["ends"][:-1])
    assert all(np.array_equal(a, b) for a, b in zip(fed.indices, rows, strict=True))
    assert ("local" in stored) == (client_test is not None)
    if client_test is not None:
        assert str(stored["client_test_from"]) == fed.client_test_from
        local = np.split(stored["local"], stored["local_ends"][:-1])
        assert all(np.array_equal(a, b) for a, b in zip(fed.client_test, local, strict=True))
    assert partition_file.stored_fingerprint(tmp_path / "partition.npz") == fed.fingerprint()
    assert np.array_equal(stored["counts"], fed.counts())
    assert stored["extra"].tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["partition.npz"]


def test_npz(tmp_path):
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    fed = Federation.load(tmp_path / "mine.npz", clients=3, partition="skewed(1)")
    assert (fed.title, len(fed), len(fed.test.y)) == ("mine", 3, 5)
    np.savez(tmp_path / "odd.npz", images=x)
    with pytest.raises(BadInput, match="no array 'x'"):
        Federation.load(tmp_path / "odd.npz")
    np.savez(tmp_path / "half.npz", x=x, y=y, x_test=x[:5])
    with pytest.raises(BadInput, match=r"half\.npz: x_test is alone; a test set needs both"):
        Federation.load(tmp_path / "half.npz")
    (tmp_path / "notes.npz").write_text("rounds: 3\n")
    with pytest.raises(BadInput, match=r"notes\.npz: not a readable .* write it with numpy\.savez$"):
        Federation.load(tmp_path / "notes.npz")
    np.savez(tmp_path / "nan.npz", x=np.full((len(y), 4), np.nan), y=y)
    with pytest.raises(BadInput, match=r"nan\.npz: training x holds NaN"):
        Federation.load(tmp_path / "nan.npz")
    np.savez(tmp_path / "evil.npz", x=np.array([print], dtype=object), y=y)
    with pytest.raises(BadInput, match="not a readable"):
        Federation.load(tmp_path / "evil.npz")


def test_npz_files_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    with pytest.raises(BadInput, match=r"mine\.npz: no such file"):
        Federation.load(path)
    os.mkfifo(path)
    with pytest.raises(BadInput, match="not a regular file"):
        Federation.load(path)
    path.unlink()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header.getvalue())
        file.writestr("y.npy", header.getvalue())
    with pytest.raises(BadInput, match=r"mine\.npz: .*(do not fit into memory|not a readable)"):
        Federation.load(path)
    np.savez_compressed(path, x=np.zeros((900, 2)), y=np.zeros(900))
    monkeypatch.setattr(os, "sysconf", lambda _: 100)  # 10,000 bytes of memory
    with pytest.raises(BadInput, match=r"mine\.npz: its arrays do not fit into memory"):
        Federation.load(path)


def test_torch_datasets():
    x, y = arrays()
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    fed = Federation.from_dataset(data, test=data, clients=3)
    assert torch.equal(fed.test.x, fed.train.x)
    assert fed.train.y.tolist() == y.tolist()
    with pytest.raises(BadInput, match=r"\(sample, label\)"):
        Federation.from_dataset([1, 2, 3])
    with pytest.raises(BadInput, match="differ in shape"):
        Federation.from_dataset([(np.zeros((3, 4, 4)), 0), (np.zeros((3, 5, 4)), 1)])


class FakeHuggingFace:
    """The used part of a Hugging Face Dataset: its column names, columns and features."""

    def __init__(self, columns, names):
        self.columns = columns
        self.features = {"fine": type("ClassLabel", (), {"names": names})()}

    @property
    def column_names(self):
        return list(self.columns)

    def __getitem__(self, name):
        return self.columns[name]


def test_huggingface_columns():
    x, y = arrays()
    data = FakeHuggingFace({"img": [Image.fromarray(a) for a in x], "fine": y.tolist()}, ["a", "b", "c", "d"])
    fed = Federation.from_dataset(data, inputs="img", label="fine", clients=3, test=data)
    assert fed.classes == 4
    assert fed.class_names == ("a", "b", "c", "d")
    assert np.array_equal(fed.train.x.numpy(), x.transpose(0, 3, 1, 2))
    assert len(fed.test.y) == 60
    with pytest.raises(BadInput, match="no column 'image'; it has img, fine"):
        Federation.from_dataset(data, inputs="image", label="fine")


def test_samples_take_rows():
    data = Samples(torch.arange(6).reshape(3, 2).float(), torch.tensor([0, 1, 2]))
    assert data.take(np.array([2, 0])).y.tolist() == [2, 0]


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the data is int: give a pair .* a torch Dataset"):
        Federation.from_dataset(3)


def test_a_mask_of_test_samples_has_one_boolean_per_sample() -> None:
    x, y = np.zeros((10, 2), np.float32), np.arange(10) % 2
    with pytest.raises(BadInput, match=r"test has shape \(4,\), there are 10 samples: give one boolean per sample"):
        Federation.from_arrays(x, y, clients=2, test=np.array([True, False, False, False]))
