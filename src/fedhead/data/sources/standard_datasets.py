"""Readers of the standard data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhead.core.components.component_check import first_docline
from fedhead.core.system.errors import BadInput, require
from fedhead.data.inputs.arrays import Samples, inputs
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.partitions.allocation import stratified
from fedhead.data.sources import dataset_files, image_folders
from fedhead.data.sources.datasets import DATASETS, Dataset, Part
from fedhead.data.sources.digits import load_digits
from fedhead.data.sources.download import Remote, fetch
from fedhead.data.transforms.augment import Transform

Read = Callable[[Path, Part, bool], Samples]  # (data folder, part, whether to download)
# md5 of each file's contents (unpacked, for idx.gz), as published or computed from the published archives.
_CHECKSUMS = Path(__file__).with_name("checksums.md5").read_text().splitlines()
MD5 = {name: md5 for md5, name in (line.split() for line in _CHECKSUMS)}
CIFAR10 = Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
CIFAR100 = Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85")
CINIC10 = Remote(
    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz", "6ee4d0c996905fe93221de577967a372"
)
TINY = Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
EMNIST = Remote("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e")
SCIKIT = "https://scikit-learn.org/stable/datasets/toy_dataset.html"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # from Debian's package dataset-fashion-mnist
UNION = "emnist-letters-union.npz"
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_DIGITS, _LETTERS = tuple("0123456789"), tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_GRAY, _COLOR = (1, 28, 28), (3, 32, 32)  # shapes of one image
_HALF = Transform.named("none", "half")
_LETTERS_TEST = 4  # bit in `source_bits` that marks samples of the official Letters test part


def standard(
    name: str,
    classes: int,
    shape: tuple[int, int, int],
    transform: Transform,
    source: str,
    names: tuple[str, ...] | None = None,
    sizes: tuple[int, int] | None = None,
) -> Callable[[Read], Read]:
    """Register the reader of a standard data set; see `Dataset` for the arguments."""

    def register(read: Read) -> Read:
        entry = Dataset(name, classes, shape, transform, first_docline(read).rstrip("."), source, read, names, sizes)
        DATASETS.register(name, entry)
        return read

    return register


@standard("digits", 10, (1, 8, 8), Transform((0.3053,), (0.376,)), SCIKIT, _DIGITS, (1437, 360))
def digits(root: Path, part: Part, download: bool) -> Samples:
    """1,797 handwritten digits, 8x8, inside scikit-learn: needs no file.

    Read scikit-learn's digits, levels 0 … 16 stretched to bytes; a fixed fifth of every class is for testing.
    """
    x, y = load_digits()
    everything = Samples(
        inputs(np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), "nhw"), torch.from_numpy(y.astype(np.int64))
    )
    test = stratified(y, 360, seed=0)
    return everything.take(test if part == "test" else np.setdiff1d(np.arange(len(y)), test))


@standard("cifar10", 10, _COLOR, Transform.named("cifar", "cifar10"), CIFAR10.url, _CIFAR10, (50_000, 10_000))
def cifar10(root: Path, part: Part, download: bool) -> Samples:
    """60,000 color photographs of 10 kinds of things, 32x32.

    Read CIFAR-10's Python batches.
    """
    names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    return _cifar("cifar10", "cifar-10-batches-py", names, b"labels", CIFAR10, root, download)


@standard("cifar100", 100, _COLOR, Transform.named("cifar100", "cifar100"), CIFAR100.url, None, (50_000, 10_000))
def cifar100(root: Path, part: Part, download: bool) -> Samples:
    """60,000 color photographs of 100 kinds of things, 32x32.

    Read CIFAR-100's Python files, with the 100 fine labels.
    """
    return _cifar("cifar100", "cifar-100-python", [part], b"fine_labels", CIFAR100, root, download)


def _cifar(
    dataset: str, folder: str, names: list[str], label: bytes, remote: Remote, root: Path, download: bool
) -> Samples:
    files = [f"{folder}/{name}" for name in names]
    absent = [name for name in files if not (root / name).is_file()]
    if absent:
        fetch(dataset, absent, remote, root, download)
    parts = [dataset_files.cifar_batch(_existing(root / name), label, MD5[name]) for name in files]
    y = np.concatenate([y for _, y in parts])
    return Samples(inputs(np.concatenate([x for x, _ in parts]), "nchw"), torch.from_numpy(y))


@standard("mnist", 10, _GRAY, _HALF, MNIST, _DIGITS, (60_000, 10_000))
def mnist(root: Path, part: Part, download: bool) -> Samples:
    """70,000 handwritten digits, 28x28.

    Read MNIST's idx files.
    """
    return _idx_pair("mnist", [root / "mnist", root / "MNIST" / "raw", root], MNIST, root / "mnist", part, download)


@standard("fashionmnist", 10, _GRAY, _HALF, FASHION, _FASHION, (60_000, 10_000))
def fashionmnist(root: Path, part: Part, download: bool) -> Samples:
    """70,000 pictures of clothes, 28x28 (also from Debian's package dataset-fashion-mnist).

    Read Fashion-MNIST's idx files, also from Debian's package.
    """
    places = [root / "fashionmnist", root / "fashion-mnist", root / "FashionMNIST" / "raw", DEBIAN]
    return _idx_pair("fashionmnist", places, FASHION, root / "fashionmnist", part, download)


def _idx_pair(dataset: str, places: list[Path], url: str, folder: Path, part: Part, download: bool) -> Samples:
    prefix = "train" if part == "train" else "t10k"
    arrays = []
    for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
        path = _find(places, name)
        if path is None:
            fetch(dataset, [f"{name}.gz"], Remote(f"{url}{name}.gz"), folder, download)
            path = folder / f"{name}.gz"
        arrays.append(dataset_files.idx(path, MD5.get(f"{dataset}/{name}")))
    return _pair(arrays[0], arrays[1], places[0])


@standard("emnist-letters", 26, _GRAY, _HALF, EMNIST.url, _LETTERS)
def emnist_letters(root: Path, part: Part, download: bool) -> Samples:
    """145,600 handwritten letters, 28x28, set upright.

    Read EMNIST Letters' official idx files.

    The published images are transposed; they are turned upright. Labels 1 … 26 become 0 … 25.
    """
    places = [root / "emnist-letters", root / "gzip", root / "EMNIST" / "raw", root]
    names = [f"emnist-letters-{part}-images-idx3-ubyte", f"emnist-letters-{part}-labels-idx1-ubyte"]
    files = [_find(places, name) for name in names]
    if None in files:
        if (root / UNION).is_file() and not download:
            raise BadInput(f"emnist-letters is not under {root}, {UNION} is: use dataset=emnist-letters-union")
        fetch("emnist-letters", [f"{name}.gz" for name in names], EMNIST, root, download)
        files = [_find(places, name) or _existing(root / "gzip" / f"{name}.gz") for name in names]
    x, y = (dataset_files.idx(path) for path in files if path is not None)
    if y.size and (y.min() < 1 or y.max() > 26):
        raise BadInput(f"{files[1]}: labels {y.min()} … {y.max()} where letters are 1 … 26")
    return _pair(x.transpose(0, 2, 1), y.astype(np.int64) - 1, root)


@standard("emnist-letters-union", 26, _GRAY, _HALF, EMNIST.url, _LETTERS)
def emnist_letters_union(root: Path, part: Part, download: bool) -> Samples:
    """127,648 real EMNIST letters of emnist-letters-union.npz: NOT the official split, classes unbalanced.

    Read a file of EMNIST letters collected from several of its parts, upright; not the official split.

    Letters known to be in the official test part are used for testing, all others for training.
    """
    path = root / UNION
    if not path.is_file():
        raise BadInput(
            f"emnist-letters-union: {UNION} not found in {root}, and it is not published: use emnist-letters, the "
            "official split, or name the folder that has the file with --data-dir or $FEDHEAD_DATA"
        )
    arrays = read_npz(path)
    for key in ("images", "labels", "source_bits"):
        require(key in arrays, f"{path}: no array {key!r} in it")
    chosen = ((arrays["source_bits"] & _LETTERS_TEST) != 0) == (part == "test")
    return _pair(arrays["images"][chosen], arrays["labels"][chosen].astype(np.int64) - 1, path)


@standard("cinic10", 10, _COLOR, Transform.named("cifar", "cinic10"), CINIC10.url, _CIFAR10, (90_000, 90_000))
def cinic10(root: Path, part: Part, download: bool) -> Samples:
    """CIFAR-10's classes with ImageNet's photographs added, 32x32: 90,000 to train on, 90,000 to test on.

    Read CINIC-10's class folders `train` and `test`; `valid` is not used, as in FedML.
    """
    places = [root / "cinic10", root / "CINIC-10", root / "cinic-10"]
    folder = next((p for p in places if (p / part).is_dir()), None)
    if folder is None:
        folder = places[0]  # the archive has no top-level folder
        fetch("cinic10", ["cinic10/train", "cinic10/test"], CINIC10, root, download, into=folder)
    classes = [d.name for d in image_folders.subfolders(_existing(folder / part))]
    return image_folders.cached(folder, part, image_folders.list_pictures(folder / part, classes), 32, 3)


@standard("tinyimagenet", 200, (3, 64, 64), Transform.named("none", "imagenet"), TINY.url, None, (100_000, 10_000))
def tinyimagenet(root: Path, part: Part, download: bool) -> Samples:
    """100,000 photographs of 200 kinds of things, 64x64; its val part is for testing.

    Read Tiny-ImageNet's folders: `train` by class, and `val`, used for testing, by its list of annotations.
    """
    folder = root / "tiny-imagenet-200"
    if not folder.is_dir():
        fetch("tinyimagenet", ["tiny-imagenet-200/train", "tiny-imagenet-200/val"], TINY, root, download)
    classes = [d.name for d in image_folders.subfolders(_existing(folder / "train"))]
    if part == "train":
        return image_folders.cached(folder, part, image_folders.list_pictures(folder / "train", classes), 64, 3)
    notes = folder / "val" / "val_annotations.txt"
    number = {name: c for c, name in enumerate(classes)}
    listed = []
    for line in dataset_files.read_bytes(_existing(notes)).decode().splitlines():
        words = line.split("\t")
        if len(words) < 2 or words[1] not in number:
            raise BadInput(f"{notes}: the line {line[:60]!r} names no class that is in train")
        listed.append((folder / "val" / "images" / words[0], number[words[1]]))
    return image_folders.cached(folder, part, listed, 64, 3)


def _pair(x: NDArray[Any], y: NDArray[Any], where: Path) -> Samples:
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise BadInput(f"{where}: images {x.shape} and labels {y.shape} do not belong together")
    return Samples(inputs(x, "nhw"), torch.from_numpy(y.astype(np.int64)))


def _find(places: list[Path], name: str) -> Path | None:
    """Return the file in the first folder that has it, compressed or not."""
    return next((p for place in places for p in (place / name, place / f"{name}.gz") if p.is_file()), None)


def _existing(path: Path) -> Path:
    require(path.exists(), f"{path}: missing; the archive next to it is incomplete, delete it and fetch it again")
    return path
