"""A federation in one .npz file: every kind of sample, natural clients, and back again."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.transforms.augment import Transform

RNG = np.random.default_rng(0)
NATURAL = {
    "y": np.arange(24, dtype=np.int16) % 3,
    "site": np.arange(24, dtype=np.int16) // 8,
    "class_names": np.array(["low", "middle", "high"]),
    "site_names": np.array(["north", "south", "east"]),
}


def cut(pieces):
    """Pieces of any length as one array with its offsets."""
    return np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])


def write(path, **changes):
    np.savez(path, **{name: value for name, value in {**NATURAL, **changes}.items() if value is not None})
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "clinics.npz"


def test_a_table_with_natural_clients(path):
    write(path, x=RNG.integers(-999, 999, (24, 5), dtype=np.int16), column_names=np.array(list("abcde")))
    fed = Federation.load(path, test=0.25)
    assert (fed.title, fed.partition, fed.classes, fed.class_names) == (
        "clinics",
        "natural",
        3,
        ("low", "middle", "high"),
    )
    assert (fed.client_names, fed.sizes, fed.client_test_from) == (("north", "south", "east"), (6, 6, 6), "test")
    assert (fed.train.x.dtype, fed.input_shape) == (torch.float32, (5,))
    assert [len(rows) for rows in fed.client_test] == [2, 2, 2]
    other = Federation.load(path, "dirichlet(1.0)", clients=4)
    assert (len(other), other.client_names, other.test) == (4, None, None)


def test_other_clients_and_test_samples_of_the_file(path):
    write(
        path,
        x=RNG.random((24, 2)),
        device=np.arange(24) % 2,
        device_names=np.array(["phone", "watch"]),
        official_test=(np.arange(24) % 4 == 0).astype(np.int8),
        take=np.arange(24),
    )
    fed = Federation.load(path, "natural(device)", test="official_test")
    assert (fed.partition, fed.client_names, fed.sizes) == ("natural(device)", ("phone", "watch"), (6, 12))
    assert len(fed.test.y) == 6
    assert [len(rows) for rows in fed.client_test] == [6, 0]
    for settings, says in (
        ({"test": "offical"}, "no array 'offical'; it has .*official_test"),
        ({"test": "take"}, "take of .* must hold 0 for training and 1 for test"),
        ({"partition": "natural(room)"}, "no array 'room'"),
        ({"clients": 5}, "3 groups, not 5"),
        ({"encode": "hashing"}, "for texts and sounds with offsets"),
    ):
        with pytest.raises(BadInput, match=says):
            Federation.load(path, **settings)


def test_windows_with_a_scale_per_channel(path):
    x = RNG.integers(-100, 100, (24, 2, 7), dtype=np.int16)
    write(path, x=x, scale=np.array([0.5, 2.0], np.float32), channel_names=np.array(["a", "b"]))
    assert np.array_equal(Federation.load(path).train.x.numpy(), x * np.float32([[0.5], [2.0]]))
    write(path, x=x, scale=np.ones(3))
    with pytest.raises(BadInput, match=r"scale has shape .* one number per channel"):
        Federation.load(path)


def test_images_of_bytes_with_offsets(path):
    pictures = RNG.integers(0, 256, (24, 6, 5, 3), dtype=np.uint8)

    def encoded(picture):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        return np.frombuffer(file.getvalue(), np.uint8)

    x, offsets = cut([encoded(picture) for picture in pictures])
    write(path, x=x, offsets=offsets)
    fed = Federation.load(path)
    assert np.array_equal(fed.train.x.numpy(), pictures.transpose(0, 3, 1, 2))
    assert Federation.load(path, size=4).input_shape == (3, 4, 4)
    x[offsets[3] : offsets[3] + 8] = 0
    write(path, x=x, offsets=offsets)
    with pytest.raises(BadInput, match=r"clinics\.npz, image 3: not a readable image"):
        Federation.load(path)


def test_texts(path):
    words = ["good and fine", "bad indeed, bad", "Größe"]
    text, offsets = cut([np.frombuffer(words[i % 3].encode(), np.uint8) for i in range(24)])
    write(path, text=text, offsets=offsets)
    hashed = Federation.load(path, encode="hashing(64)").train
    assert hashed.x.shape == (24, 64)
    assert torch.allclose(hashed.x.norm(dim=1), torch.ones(24))
    assert torch.equal(hashed.x[0], hashed.x[3])
    assert not torch.equal(hashed.x[0], hashed.x[1])
    tokens = Federation.load(path, encode="bytes(8)").train.x
    assert tokens.dtype == torch.int64
    assert tokens[2].tolist() == [b + 1 for b in "Größe".encode()] + [0]
    assert tokens[0].tolist() == [b + 1 for b in b"good and"]
    text[0] = 255
    write(path, text=text, offsets=offsets)
    for settings, says in (
        ({"encode": "hashing"}, "the text of sample 0 is not UTF-8"),
        ({"encode": "hashng"}, "not UTF-8"),
        ({"encode": "bytes(0)"}, "not UTF-8"),
    ):
        with pytest.raises(BadInput, match=says):
            Federation.load(path, **settings)
    text[0] = 65
    write(path, text=text, offsets=offsets)
    for encode, says in (
        ("hashng", "encoder of text 'hashng'.*did you mean 'hashing'"),
        ("bytes(0)", "length: 0 is out of range"),
        ("waveform", "unknown encoder of text 'waveform'"),
    ):
        with pytest.raises(BadInput, match=says):
            Federation.load(path, encode=encode)


def test_sounds(path):
    sounds = [RNG.integers(-9000, 9000, RNG.integers(500, 2000), dtype=np.int16) for _ in range(24)]
    x, offsets = cut(sounds)
    write(path, x=x, offsets=offsets, rate=np.array(2000))
    fed = Federation.load(path, encode="spectrogram(0.5)")
    assert fed.input_shape[:2] == (1, 64)
    assert torch.allclose(fed.train.x.mean((1, 2, 3)), torch.zeros(24), atol=1e-4)
    assert torch.allclose(fed.train.x.flatten(1).std(1), torch.ones(24), atol=1e-3)
    wave = Federation.load(path, encode="waveform(0.4)").train.x
    assert wave.shape == (24, 1, 800)
    first = np.zeros(800, np.float32)
    first[: len(sounds[0][:800])] = sounds[0][:800] / 32768
    assert np.allclose(wave[0, 0], first)
    write(path, x=x, offsets=offsets)
    with pytest.raises(BadInput, match="x with offsets is int16; it needs bytes of images, or rate for sounds"):
        Federation.load(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": None}, "no array 'x'"),
        ({"y": None}, "no array 'y'"),
        ({"site": np.zeros(5)}, "site has 5 entries, there are 24 samples"),
        ({"site": np.full(24, 7)}, "groups holds '7', which is none of the clients 0, 1, 2"),
        ({"y": np.full(24, 3)}, "label 3 is outside the 3 classes"),
        ({"x": np.zeros((24, 2), np.int64)}, "can be read in several ways"),
        ({"layout": np.array("rows")}, "layout: 'rows' is unknown"),
        ({"ward": np.zeros(7)}, "ward has 7 entries, there are 24 samples"),
        ({"column_names": np.array(["a"])}, "column_names must be different names, one for each column"),
        ({"column_names": np.array(["a", "a"])}, "column_names must be different names"),
        ({"channel_names": np.array(["a", "b", "c"])}, "channel_names must be different names"),
        ({"scale": np.array([1.0, 0.0])}, "scale must hold finite numbers other than 0"),
        ({"scale": np.array(["a", "b"])}, "scale must hold finite numbers"),
        ({"x": None, "text": np.array(["good", "bad"] * 12)}, "text holds words; texts are the arrays text"),
        ({"x": np.zeros(9, np.uint8), "offsets": np.array([0, 5, 3, 9])}, "offsets must rise from 0 to the length 9"),
        ({"x": np.zeros(9, np.uint8), "offsets": np.array([0, 5])}, "offsets must rise"),
        ({"x": np.zeros(9, np.uint8), "offsets": np.array([0.0, 9.0])}, "offsets must rise"),
    ],
)
def test_files_whose_arrays_do_not_go_together_are_refused(path, changes, says):
    write(path, **{"x": np.zeros((24, 2)), **changes})
    with pytest.raises(BadInput, match=says) as caught:
        Federation.load(path)
    assert "clinics.npz" in str(caught.value)


# -- missing values -------------------------------------------------------------------------------
def test_missing_values_are_filled_by_the_mean_over_clients():
    nan = np.nan
    clients = [([[1.0, 10], [nan, 20]], [0, 1]), ([[3.0, nan], [5.0, 30]], [0, 1]), ([[nan, nan]], [1])]
    test = ([[nan, 7.0]], [0])
    with pytest.raises(BadInput, match=r'client 0 x holds NaN .* sample 1: clean the data \(or missing="mean"'):
        Federation.from_clients(clients, test=test)
    fed = Federation.from_clients(clients, test=test, missing="mean")
    assert fed.train.x.tolist() == [[1, 10, 0, 0], [3, 20, 1, 0], [3, 20, 0, 1], [5, 30, 0, 0], [3, 20, 1, 1]]
    assert fed.test.x.tolist() == [[3, 7, 1, 0]]
    again = Federation.from_clients(clients, missing="mean", normalize="standard")
    assert np.allclose(again.transform(again.train.x).mean(0), 0, atol=1e-6)
    assert np.allclose(again.transform(again.train.x).std(0, correction=0), 1)


def test_test_samples_do_not_count_in_the_mean(path):
    x = np.zeros((24, 2), np.float32)
    x[::4, 0], x[1, 0] = 1000, np.nan
    write(path, x=x, held=np.arange(24) % 4 == 0, column_names=np.array(["a", "b"]))
    fed = Federation.load(path, test="held", missing="mean")
    assert fed.train.x[0].tolist() == [0, 0, 1]  # row 1 of the file: the mean of the training rows is 0
    with pytest.raises(BadInput, match="holds NaN"):
        Federation.load(path, test="held")
    with pytest.raises(BadInput, match="missing: 'median' is unknown, it is refuse or mean"):
        Federation.load(path, missing="median")
    write(path, x=np.full((24, 2, 2), np.nan))
    with pytest.raises(BadInput, match="is for tables of"):
        Federation.load(path, missing="mean")


# -- and back -------------------------------------------------------------------------------------
def images(n=40):
    return RNG.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8), np.arange(n) % 4


@pytest.mark.parametrize("client_test", [None, 0.3, "matched"])
@pytest.mark.parametrize("kind", ["images", "features", "tokens"])
def test_a_saved_federation_comes_back_as_it_was(path, kind, client_test):
    x, y = images()
    settings = {"layout": "nchw", "transform": Transform.named("flip+rotate(10)", "half")}
    if kind == "features":
        x, settings = x / 255, {"layout": "features", "normalize": "standard"}
    if kind == "tokens":
        x, settings = x.reshape(40, 16).astype(np.int64), {"layout": "tokens"}
    fed = Federation.from_arrays(
        x,
        np.array(["a", "b", "c", "d"])[y],
        "dirichlet(0.5)",
        5,
        test=(x[:9], ["a"] * 9),
        public=(x[:2], ["a", "b"]),
        client_test=client_test,
        **settings,
    )
    fed.save(path)
    back = Federation.load(path)
    for name in ("train", "test", "public"):
        for mine, other in zip(getattr(fed, name), getattr(back, name), strict=True):
            assert torch.equal(mine, other)
            assert mine.dtype == other.dtype
    for name in ("classes", "class_names", "partition", "title", "transform", "client_test_from"):
        assert getattr(back, name) == getattr(fed, name), name
    assert all(np.array_equal(a, b) for a, b in zip(fed.indices, back.indices, strict=True))
    assert (back.client_test is None) == (client_test is None)
    for mine, other in zip(fed.client_test or [], back.client_test or [], strict=True):
        assert np.array_equal(mine, other)
    assert len(Federation.load(path, "iid", 3)) == 3


def test_validation_samples_and_means_of_missing_values_are_saved(path):
    x, y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
    x[::7, 1] = np.nan
    fed = Federation.from_arrays(x, y, "dirichlet(0.5)", 5, client_test=0.2, missing="mean").with_validation(0.3)
    fed.save(path)
    back = Federation.load(path)
    assert sum(map(len, fed.validation)) > 0
    for name in ("indices", "client_test", "validation"):
        assert all(map(np.array_equal, getattr(fed, name), getattr(back, name))), name
    assert back.missing == fed.missing
    assert fed.missing[""].indicated == (1,)
    held = dict(np.load(path))
    held["validation_indices"][0] = -1
    np.savez(path, **held)
    with pytest.raises(BadInput, match="validation indices are not among its 40 samples"):
        Federation.load(path)


def encoded_pictures():
    def encoded(picture):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "WEBP", lossless=True)
        return np.frombuffer(file.getvalue(), np.uint8)

    return [encoded(picture) for picture in RNG.integers(0, 256, (24, 6, 6, 3), dtype=np.uint8)]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("text", {"encode": "hashing(16)"}),
        ("text", {"encode": lambda text: list(text.encode())}),
        ("sound", {"encode": "spectrogram(0.1)"}),
        ("images", {"size": 4, "augment": "flip"}),
    ],
)
def test_texts_sounds_and_images_come_back_as_they_were(path, kind, settings):
    if kind == "text":
        pieces = [np.frombuffer(b"well " * (1 + i % 3), np.uint8) for i in range(24)]
    elif kind == "sound":
        pieces = [RNG.integers(-9000, 9000, 300 + i, dtype=np.int16) for i in range(24)]
    else:
        pieces = encoded_pictures()
    values, offsets = cut(pieces)
    rate = {"rate": np.array(2000)} if kind == "sound" else {}
    write(path, **{"text" if kind == "text" else "x": values, "offsets": offsets, **rate})
    fed = Federation.load(path, test=0.25, **settings)
    saved = path.with_name("saved.npz")
    fed.save(saved)
    back = Federation.load(saved)
    for name in ("train", "test"):
        assert getattr(back, name).digest() == getattr(fed, name).digest()
    assert back.input_types == fed.input_types
    assert (back.transform, back.client_names, back.class_names) == (fed.transform, fed.client_names, fed.class_names)
    for mine, other in zip([*fed.indices, *fed.client_test], [*back.indices, *back.client_test], strict=True):
        assert np.array_equal(mine, other)


def test_a_tokenizer_is_for_texts(path):
    write(path, x=np.zeros(24, np.int16), offsets=np.arange(25), rate=np.array(2000))
    with pytest.raises(BadInput, match="a tokenizer is for texts"):
        Federation.load(path, encode=len)


def test_what_is_not_saved_and_not_a_federation(path):
    x, y = images()
    fed = Federation.from_clients({"a": (x[:20], y[:20]), "b": (x[20:], y[20:])})
    fed.take(np.arange(10, 40)).save(path)
    assert Federation.load(path).sizes == (10, 20)
    assert Federation.load(path).client_names == ("a", "b")
    with pytest.raises(BadInput, match=r"give a name that ends in \.npz"):
        fed.save(path.with_suffix(".zip"))
    with pytest.raises(BadInput, match=r"clients: the file has 2, not 5; set clients=2 \(in a recipe clients is 10"):
        Federation.load(path, "natural", 5)
    held = dict(np.load(path))
    np.savez(path, **{**held, "fedhead_federation": np.array(1)})
    with pytest.raises(BadInput, match=r"not a federation that fedhead wrote \(it is of another version: save it"):
        Federation.load(path)
    np.savez(path, **{name: value for name, value in held.items() if name != "classes"})
    with pytest.raises(BadInput, match="not a federation that fedhead wrote"):
        Federation.load(path)
    for name, labels in (("y", held["y"] * np.nan), ("y", held["y"] * 1j), ("y_test", held["y"][0])):
        np.savez(path, **{**held, "x_test": held["x"], "y_test": held["y"], name: labels})
        with pytest.raises(BadInput, match=rf"not a federation that fedhead wrote \({name} is "):
            Federation.load(path)
    np.savez(path, **held, client_test_indices=np.array([99]), client_test_ends=np.array([1, 1]))
    with pytest.raises(BadInput, match="test indices are not among its 30 samples"):
        Federation.load(path)


def test_settings_of_files_are_refused_for_registered_data():
    with pytest.raises(BadInput, match="layout: this is for files and folders, digits is a registered data set"):
        Federation.load("digits", layout="nhwc")
    with pytest.raises(BadInput, match=r"nowhere\.npz: no such file"):
        Federation.load("nowhere.npz")


def test_a_file_in_a_folder_that_is_not_there_and_samples_without_numbers_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"x\.npz: there is no such folder"):
        Federation.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], "iid", clients=2).save(tmp_path / "none" / "x.npz")
    with pytest.raises(BadInput, match=r"training x has shape \(4, 0\): its samples hold no numbers"):
        Federation.from_arrays(np.zeros((4, 0)), [0, 1, 0, 1], "iid", clients=2)
