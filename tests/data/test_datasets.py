"""The standard data sets, read from small files that have their formats; damaged and malicious ones are refused."""

import dataclasses
import gzip
import hashlib
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.sources import dataset_cache, dataset_files, datasets, download, image_folders, standard_datasets


class OwnChecksums(dict):
    """The checksums of the files that a test wrote under a folder."""

    def __init__(self, root):
        self.root = root

    def __missing__(self, name):
        return md5(next(self.root.rglob(name)))


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Data sets without the sizes and checksums of the real files."""
    monkeypatch.setattr(standard_datasets, "MD5", OwnChecksums(tmp_path))
    for name, entry in datasets.DATASETS.items():
        if name != "digits":
            monkeypatch.setitem(datasets.DATASETS._held, name, dataclasses.replace(entry, sizes=None))


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(whole) if path.suffix == ".gz" else whole)


def write_cifar(path, n, label, high, seed=0):
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {b"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8), label: (np.arange(n) % high).tolist()}
    path.write_bytes(pickle.dumps({**held, b"filenames": [b"a.png"] * n}, protocol=2))
    return held


# -- digits ---------------------------------------------------------------------------------------
def test_digits_need_no_file(tmp_path):
    train, test = datasets.get("digits").load(tmp_path)
    assert (len(train.y), len(test.y)) == (1437, 360)
    assert (train.x.min(), train.x.max()) == (0, 255)
    seen = {x.numpy().tobytes() for x in train.x}
    assert sum(x.numpy().tobytes() in seen for x in test.x) <= 1  # no leak (scikit-learn itself has a twin or so)
    assert np.bincount(test.y).min() >= 34
    again = datasets.get("digits").load(tmp_path)
    assert (again[1].x == test.x).all()


def test_digits_mean_and_deviation():
    train, _ = datasets.get("digits").load()
    transform = datasets.get("digits").transform
    assert train.x.double().mean() / 255 == pytest.approx(transform.mean[0], abs=2e-3)
    assert train.x.double().std() / 255 == pytest.approx(transform.std[0], abs=2e-3)


def test_load_takes_subsets_and_other_transforms(tmp_path):
    fed = Federation.load("digits", "skewed(2)", 5, 1, subset=200, augment="cifar", normalize="half")
    assert len(fed.train.y) == 200
    assert len(fed.test.y) == 360
    assert fed.transform.augment == ("crop-reflect(4)", "flip")
    assert fed.transform.mean == (0.5,)
    assert (fed.title, fed.partition) == ("digits", "skewed(2)")


# -- CIFAR ----------------------------------------------------------------------------------------
def test_cifar10(tmp_path, small):
    batches = [write_cifar(tmp_path / f"cifar-10-batches-py/data_batch_{i}", 20, b"labels", 10, i) for i in range(1, 6)]
    write_cifar(tmp_path / "cifar-10-batches-py/test_batch", 10, b"labels", 10)
    train, test = datasets.get("cifar10").load(tmp_path, download=False)
    assert train.x.shape == (100, 3, 32, 32)
    assert len(test.y) == 10
    assert np.array_equal(train.x[20].numpy().reshape(-1), batches[1][b"data"][0])


def test_cifar100_reads_fine_labels_and_serves_as_public_data(tmp_path, small):
    write_cifar(tmp_path / "cifar-100-python/test", 200, b"fine_labels", 100)
    for i in range(1, 6):
        write_cifar(tmp_path / f"cifar-10-batches-py/data_batch_{i}", 20, b"labels", 10, i)
    write_cifar(tmp_path / "cifar-10-batches-py/test_batch", 10, b"labels", 10)
    fed = Federation.load(
        "cifar10", data_dir=tmp_path, clients=2, download=False, public="cifar100", public_samples=150
    )
    assert fed.public.x.shape == (150, 3, 32, 32)
    with pytest.raises(BadInput, match=r"cifar-100-python/train not found in .*https://www\.cs\.toronto\.edu"):
        Federation.load("cifar100", data_dir=tmp_path, download=False)


def test_checksums_are_held_to(tmp_path):
    for i in range(1, 6):
        write_cifar(tmp_path / f"cifar-10-batches-py/data_batch_{i}", 20, b"labels", 10, i)
    with pytest.raises(BadInput, match="data_batch_1: its checksum is not the published c99cafc"):
        datasets.get("cifar10").part("train", tmp_path, download=False)


def test_too_few_samples_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(standard_datasets, "MD5", OwnChecksums(tmp_path))
    write_cifar(tmp_path / "cifar-10-batches-py/test_batch", 10, b"labels", 10)
    with pytest.raises(BadInput, match=r"10 test samples under .* 10000 expected"):
        datasets.get("cifar10").part("test", tmp_path, download=False)


def test_a_pickle_that_is_not_the_published_one_is_not_opened(tmp_path):
    path, proof = tmp_path / "cifar-10-batches-py/test_batch", tmp_path / "proof"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({b"data": Evil(os.mkdir, str(proof)), b"labels": [0]}))
    with pytest.raises(BadInput, match="its checksum is not the published"):
        datasets.get("cifar10").part("test", tmp_path, download=False)
    assert not proof.exists()


class Evil:
    def __init__(self, call, *args):
        self.reduced = (call, args)

    def __reduce__(self):
        return self.reduced


def test_pickles_of_older_protocols_are_read(tmp_path):
    path = tmp_path / "batch"
    for protocol in range(5):
        data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
        path.write_bytes(pickle.dumps({b"data": data, b"labels": [1, 0]}, protocol=protocol))
        x, y = dataset_files.cifar_batch(path, b"labels", md5(path))
        assert np.array_equal(x.reshape(2, -1), data)
        assert y.tolist() == [1, 0]


# -- idx ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashionmnist", "fashionmnist")]
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_alike(tmp_path, small, monkeypatch, name, folder, suffix):
    x = np.random.default_rng(0).integers(0, 256, (30, 28, 28))
    for prefix, n in (("train", 30), ("t10k", 10)):
        write_idx(tmp_path / folder / f"{prefix}-images-idx3-ubyte{suffix}", x[:n])
        write_idx(tmp_path / folder / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(n) % 10)
    train, test = datasets.get(name).load(tmp_path, download=False)
    assert np.array_equal(train.x[:, 0].numpy(), x)
    assert test.y.tolist() == list(range(10))


def test_fashion_mnist_of_debian(tmp_path, small, monkeypatch):
    monkeypatch.setattr(standard_datasets, "DEBIAN", tmp_path / "debian")
    for prefix in ("train", "t10k"):
        write_idx(tmp_path / "debian" / f"{prefix}-images-idx3-ubyte.gz", np.zeros((10, 28, 28)))
        write_idx(tmp_path / "debian" / f"{prefix}-labels-idx1-ubyte.gz", np.arange(10))
    train, _ = datasets.get("fashionmnist").load(tmp_path / "empty", download=False)
    assert len(train.y) == 10


def test_emnist_letters_are_set_upright(tmp_path, small):
    x = np.random.default_rng(0).integers(0, 256, (52, 28, 28))
    for part in ("train", "test"):
        write_idx(tmp_path / "gzip" / f"emnist-letters-{part}-images-idx3-ubyte.gz", x)
        write_idx(tmp_path / "gzip" / f"emnist-letters-{part}-labels-idx1-ubyte.gz", np.arange(52) % 26 + 1)
    train, _ = datasets.get("emnist-letters").load(tmp_path, download=False)
    assert np.array_equal(train.x[3, 0].numpy(), x[3].T)
    assert (train.y.min(), train.y.max()) == (0, 25)


def test_emnist_letters_from_the_union_file(tmp_path):
    bits = np.array([8, 4, 12, 1, 32], np.uint8)  # Letters train, Letters test, both, ByClass test, Balanced train
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(
        tmp_path / standard_datasets.UNION, images=x, labels=np.array([1, 2, 3, 26, 5], np.uint8), source_bits=bits
    )
    train, test = datasets.get("emnist-letters-union").load(tmp_path, download=False)
    assert test.y.tolist() == [1, 2]
    assert train.y.tolist() == [0, 25, 4]
    assert np.array_equal(train.x[1, 0].numpy(), x[3])
    assert "NOT the official split" in datasets.get("emnist-letters-union").description
    with pytest.raises(BadInput, match="use dataset=emnist-letters-union"):  # it never passes for the official data
        datasets.get("emnist-letters").load(tmp_path, download=False)
    with pytest.raises(BadInput, match="use emnist-letters"):
        datasets.get("emnist-letters-union").load(tmp_path / "empty", download=False)


def test_damaged_idx_files_are_refused(tmp_path):
    path = tmp_path / "images.gz"
    write_idx(path, np.zeros((5, 28, 28)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(BadInput, match=r"images\.gz: truncated or corrupt"):
        dataset_files.idx(path)
    path.write_bytes(gzip.decompress(whole)[:-5])
    with pytest.raises(BadInput, match="3915 bytes, its header says 5x28x28"):
        dataset_files.idx(path)
    path.write_bytes(b"hello, world")
    with pytest.raises(BadInput, match="not an idx file"):
        dataset_files.idx(path)


# -- folder trees ---------------------------------------------------------------------------------
def picture(path, value, side):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (value, value, value)).save(path)


def test_cinic10_is_decoded_once(tmp_path, small, monkeypatch):
    names = datasets.get("cinic10").names
    for part in ("train", "valid", "test"):
        for c, name in enumerate(names):
            picture(tmp_path / "cinic10" / part / name / "0.png", c * 10, 32)
    picture(tmp_path / "cinic10/train/cat/1.png", 99, 32)
    train, test = datasets.get("cinic10").load(tmp_path, download=False)
    assert train.y.tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9]
    assert test.x[7].unique().tolist() == [70]

    decoded = []
    real = image_folders.decode_list
    monkeypatch.setattr(
        image_folders, "decode_list", lambda root, listed, *rest: decoded.append(1) or real(root, listed, *rest)
    )
    dataset_cache.clear()
    again, _ = datasets.get("cinic10").load(tmp_path, download=False)
    assert decoded == []  # from the kept array
    assert (again.x == train.x).all()

    for kept in (tmp_path / "cinic10").glob(".fedhead-train-*.npz"):
        kept.write_bytes(kept.read_bytes()[:100])  # damaged: decoded again
    dataset_cache.clear()
    again, _ = datasets.get("cinic10").load(tmp_path, download=False)
    assert decoded == [1]
    assert (again.x == train.x).all()

    picture(tmp_path / "cinic10/train/cat/2.png", 98, 32)  # a file more: another list, decoded again
    dataset_cache.clear()
    more, _ = datasets.get("cinic10").load(tmp_path, download=False)
    assert len(more.y) == 12


def test_tiny_imagenet_and_its_annotations(tmp_path, small):
    home = tmp_path / "tiny-imagenet-200"
    for c, name in enumerate(("n01", "n02", "n03")):
        picture(home / "train" / name / "images" / f"{name}_0.JPEG", 40 * c, 64)
    for i, name in enumerate(("n03", "n01")):
        picture(home / "val/images" / f"val_{i}.JPEG", 10, 64)
        with open(home / "val/val_annotations.txt", "a") as file:
            file.write(f"val_{i}.JPEG\t{name}\t0\t0\t63\t63\n")
    train, test = datasets.get("tinyimagenet").load(tmp_path, download=False)
    assert train.x.shape == (3, 3, 64, 64)
    assert test.y.tolist() == [2, 0]
    with open(home / "val/val_annotations.txt", "a") as file:
        file.write("val_9.JPEG\tn99\n")
    dataset_cache.clear()
    with pytest.raises(BadInput, match="names no class"):
        datasets.get("tinyimagenet").part("test", tmp_path, download=False)


# -- downloads ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in datasets.DATASETS if n not in ("digits", "emnist-letters-union")])
def test_missing_and_offline_names_file_folder_and_source(tmp_path, monkeypatch, name):
    import pooch

    def offline(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setattr(standard_datasets, "DEBIAN", tmp_path / "no debian")
    with pytest.raises(BadInput, match=r"(?s)not found in .*no route to host.*https?://.*--data") as caught:
        datasets.get(name).load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_unpacked_and_checked(tmp_path, small, monkeypatch):
    for part in ("train", "test"):
        write_cifar(tmp_path / "made/cifar-100-python" / part, 100, b"fine_labels", 100)
    root = tmp_path / "data"
    root.mkdir()
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "made/cifar-100-python", "cifar-100-python")
    with pytest.raises(BadInput, match="its checksum is not eb9058c"):
        datasets.get("cifar100").load(root, download=False)
    monkeypatch.setattr(standard_datasets, "CIFAR100", download.Remote(standard_datasets.CIFAR100.url))
    train, _ = datasets.get("cifar100").load(root, download=False)
    assert len(train.y) == 100
    (root / "cifar-100-python/train").unlink()
    archive = root / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-1000])
    dataset_cache.clear()
    with pytest.raises(BadInput, match=r"tar\.gz: truncated or corrupt"):
        datasets.get("cifar100").load(root, download=False)


# -- the registry ---------------------------------------------------------------------------------
def test_the_registry():
    with pytest.raises(BadInput, match="did you mean 'cifar10'"):
        datasets.get("cifar-10")
    for name, entry in datasets.DATASETS.items():
        assert name == entry.name
        entry.transform.check(entry.shape)
        assert entry.names is None or len(entry.names) == entry.classes
        assert entry.description
        assert entry.source.startswith("http")


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDHEAD_DATA", raising=False)
    assert datasets.folder().parts[-2:] == (".cache", "fedhead")
    monkeypatch.setenv("FEDHEAD_DATA", str(tmp_path))
    assert datasets.folder() == tmp_path
    assert datasets.folder(tmp_path / "b") == tmp_path / "b"


def test_a_number_of_public_samples_needs_public_data() -> None:
    with pytest.raises(BadInput, match="public_samples: 40 would have no effect without public"):
        Federation.load("digits", "iid", clients=2, public_samples=40)
