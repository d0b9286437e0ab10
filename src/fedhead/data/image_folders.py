"""Folder trees of images: decoded once into one array, which is kept beside the data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fedhead.core.errors import BadInput
from fedhead.data.arrays import Samples
from fedhead.data.formats import read_npz

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, by name; hidden ones are passed over."""
    return sorted(d for d in path.iterdir() if d.is_dir() and not d.name.startswith("."))


def pictures(path: Path) -> list[Path]:
    """The image files in a folder, by name, or in its folder `images` (Tiny-ImageNet)."""
    found = sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES)
    return found or (pictures(path / "images") if (path / "images").is_dir() else [])


def decode(root: Path, names: Sequence[str], size: int | None = None, channels: int | None = None) -> Samples:
    """The images of a folder with one folder a class; `names` are the classes in order."""
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder")
    listed = [
        (picture, c) for c, name in enumerate(names) if (root / name).is_dir() for picture in pictures(root / name)
    ]
    return decode_list(root, listed, size, channels)


def decode_list(
    root: Path, listed: Sequence[tuple[Path, int]], size: int | None = None, channels: int | None = None
) -> Samples:
    """Image files and their classes as samples; gray only if all are, or as many channels as told."""
    from PIL import Image

    if not listed:
        raise BadInput(f"{root}: no PNG or JPEG images in its class folders")
    x: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None = None
    with _progress(f"decoding {root.name}", len(listed)) as advance:
        for i, (path, _) in enumerate(listed):
            try:
                with Image.open(path) as picture:
                    if x is None:
                        channels = channels or (1 if picture.mode in ("1", "L", "I;16") else 3)
                        wide, high = (size, size) if size else picture.size
                        x = np.empty((len(listed), high, wide, channels), np.uint8)
                    own = picture.convert("L" if channels == 1 else "RGB")
                    if size and own.size != (size, size):
                        own = own.resize((size, size), Image.Resampling.BILINEAR)
                    pixels = np.asarray(own)
            except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
                raise BadInput(f"{path}: not a readable image ({error}); delete it or fetch it again") from None
            if pixels.shape[:2] != x.shape[1:3]:
                raise BadInput(
                    f"{path}: an image of {pixels.shape[1]}x{pixels.shape[0]} among others of "
                    f"{x.shape[2]}x{x.shape[1]}; give a size to bring all to"
                )
            x[i] = pixels if pixels.ndim == 3 else pixels[:, :, None]
            advance()
    assert x is not None
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    return Samples(images, torch.tensor([c for _, c in listed], dtype=torch.int64))


def cached(root: Path, key: str, listed: Sequence[tuple[Path, int]], size: int | None, channels: int) -> Samples:
    """As `decode_list`, from the array that an earlier call kept if the list of files is still the same."""
    told = "\n".join(f"{path.relative_to(root)}\t{c}" for path, c in listed)
    mark = hashlib.sha256(told.encode()).hexdigest()[:16]
    kept = root / f".fedhead-{key}-{mark}.npz"
    if kept.is_file():
        try:
            held = read_npz(kept)
            return Samples(torch.from_numpy(held["x"]), torch.from_numpy(held["y"]))
        except (BadInput, KeyError):
            kept.unlink(missing_ok=True)  # half written or damaged: decode again
    data = decode_list(root, listed, size, channels)
    if os.access(root, os.W_OK):
        beside = kept.with_name(f"{kept.name}.{os.getpid()}.part")
        with open(beside, "wb") as file:
            np.savez(file, x=data.x.numpy(), y=data.y.numpy())
        os.replace(beside, kept)
    return data


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for long work; short work goes without."""
    if total < 2000:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
