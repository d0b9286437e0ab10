"""Readers of arrays: checkpoints, statistics, .npz files, images, the standard data sets' formats."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutations import mutate_value
from PIL import Image
from readers import Generate, Reader, run_folder

from fedhead.calibration.files import load_statistics, save_statistics
from fedhead.calibration.statistics import from_features
from fedhead.core.tree import treefile
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.treefile import load_metadata, load_tree, save_tree
from fedhead.data.federation.federation import Federation
from fedhead.data.sources import dataset_files, images


def checkpoint(folder: Path) -> Reader:
    file = folder / "checkpoint.safetensors"
    tree = Tree(server=Tree(model=Weights({"a.w": torch.rand(3, 4), "b": torch.ones(2)}, ["b"])), clients=Tree())
    save_tree(file, tree, {"round": 3})
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])

    def structured(rng: random.Random) -> bytes:
        """A header that was changed and whose checksums were made to match."""
        found = json.loads(json.dumps(header))
        part = rng.choice(("tree", "metadata", "tensors", "metadata and tree"))
        said = found["__metadata__"]
        for name in ("tree", "metadata"):
            if name in part:
                said[name] = json.dumps(mutate_value(json.loads(said[name]), rng))
        said["header_digest"] = treefile._digest(said)
        if part == "tensors":
            found = mutate_value(found, rng)
        text = json.dumps(found).encode()
        return len(text).to_bytes(8, "little") + text + whole[8 + size :]

    def read() -> None:
        state, metadata = load_tree(file)
        assert metadata == load_metadata(file)
        state.leaves()

    return Reader(whole, file, read, structured)


def npz(arrays: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


ARRAYS = (
    *(np.array(3), np.array("x"), np.zeros(0), np.zeros((0, 3)), np.array([np.nan, 1.0]), np.array([2**63], np.uint64)),
    *(
        np.array([-1, 5]),
        np.array([1j]),
        np.array(["a", "b"]),
        np.array([b"\xff"]),
        np.zeros(9, ">i4"),
        np.array([True]),
    ),
    *(np.zeros(5, np.longdouble), np.array(["2026-01-01"], "M8[D]"), np.zeros((2, 2, 2, 2, 2)), np.array([10**18] * 3)),
    np.zeros(3, [("a", "i4"), ("b", "f8")]),
)


def changed_arrays(arrays: dict[str, Any]) -> Generate:
    def structured(rng: random.Random) -> bytes:
        found = dict(arrays)
        name = rng.choice(list(found))
        change = rng.randrange(5)
        if change == 0:
            del found[name]
        elif change == 1:
            found[name] = rng.choice(ARRAYS)
        elif change == 2:
            found[name] = np.asarray(found[name])[..., :1] if np.ndim(found[name]) else rng.choice(ARRAYS)
        elif change == 3:
            found[rng.choice(list(found))] = found[name]
        else:
            return _forged(found, name, rng)
        return npz(found)

    return structured


def _forged(arrays: dict[str, Any], name: str, rng: random.Random) -> bytes:
    """An .npz one of whose arrays claims another shape or type than it has."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, value in arrays.items():
            raw = io.BytesIO()
            np.lib.format.write_array(raw, np.asarray(value))
            data = raw.getvalue()
            if each == name:
                claims = rng.choice(
                    (b"(10000000000,)", b"(-1,)", b"(2, 3)", b"()", b"(99999999999999999999,)", b"(1e9,)")
                )
                text = b"{'descr': '<f8', 'fortran_order': False, 'shape': " + claims + b", }"
                text += b" " * (117 - len(text)) + b"\n"
                data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data[128:]
            archive.writestr(f"{each}.npy", data)
    return out.getvalue()


def samples() -> Federation:
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    return Federation.from_arrays(x, np.arange(12) % 3, clients=3, client_test=0.5, test=(x[:4], np.arange(4) % 3))


def arrays_of(file: Path) -> dict[str, Any]:
    with np.load(file) as held:
        return {name: held[name] for name in held.files}


def partition(folder: Path) -> Reader:
    made, data = run_folder(folder / "run"), samples()
    made.save_split(data)
    file = made.path / "partition.npz"

    def read() -> None:
        made.save_split(data)

    return Reader(file.read_bytes(), file, read, changed_arrays(arrays_of(file)))


def federation(folder: Path) -> Reader:
    file = folder / "federation.npz"
    samples().save(file)
    return Reader(file.read_bytes(), file, lambda: Federation.load(file).counts(), changed_arrays(arrays_of(file)))


def plain_npz(folder: Path) -> Reader:
    arrays = {"x": np.random.default_rng(0).random((12, 4)), "y": np.arange(12) % 3, "site": np.arange(12) % 2}
    file = folder / "data.npz"
    return Reader(npz(arrays), file, lambda: Federation.load(file, clients=2).counts(), changed_arrays(arrays))


def statistics(folder: Path) -> Reader:
    file = folder / "statistics.safetensors"
    x = torch.rand(9, 3, dtype=torch.float64)
    save_statistics(file, from_features(x, torch.arange(9) % 3, 3))
    tree, metadata = load_tree(file)

    def structured(rng: random.Random) -> bytes:
        found: dict[str, Any] = dict(tree.items())
        name = rng.choice(list(found))
        value = found[name]
        found[name] = rng.choice(
            (
                *(-value, value * 1e308, value * float("nan"), value[:1], value.float(), value.reshape(-1)),
                *(torch.zeros(0, dtype=torch.float64), torch.tensor(3.0), Tree(x=torch.ones(1))),
            )
        )
        if rng.random() < 0.1:
            del found[name]
        other = folder / "other.safetensors"
        save_tree(other, Tree(found), mutate_value(metadata, rng) if rng.random() < 0.2 else metadata)
        return other.read_bytes()

    return Reader(file.read_bytes(), file, lambda: load_statistics(file), structured)


UNPACKED = 8 * images.MAX_PIXELS  # a sound image of a few bytes may be one of so many pixels, all alike


def image(kind: str) -> Callable[[Path], Reader]:
    def make(folder: Path) -> Reader:
        out = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 255, (9, 8, 3), np.uint8)
        Image.fromarray(pixels).save(out, kind)
        file = folder / "image.png"
        return Reader(out.getvalue(), file, lambda: images.decode([images.Source(str(file), file)]), None, UNPACKED)

    return make


def idx(folder: Path) -> Reader:
    file = folder / "images-idx3-ubyte"
    sound = b"\0\0\x08\x03" + b"".join(side.to_bytes(4, "big") for side in (2, 3, 3)) + bytes(18)
    return Reader(sound, file, lambda: dataset_files.idx(file))
