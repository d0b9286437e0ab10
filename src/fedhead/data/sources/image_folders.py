"""Folders of images, decoded once to an array that is cached next to the data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.core.tree.inputs import tensors_of
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.sources import images

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})


def subfolders(path: Path) -> list[Path]:
    """List the visible subfolders of a folder, sorted."""
    return sorted(d for d in path.iterdir() if d.is_dir() and not d.name.startswith("."))


def pictures(path: Path) -> list[Path]:
    """List the image files of a folder, or of its subfolder `images` (Tiny-ImageNet), sorted."""
    files = sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES)
    return files or (pictures(path / "images") if (path / "images").is_dir() else [])


def decode(root: Path, names: Sequence[str], size: int | None = None, channels: int | None = None) -> Samples:
    """Read the images of a folder that has one folder per class.

    Args:
        root: The folder.
        names: Classes in order.
        size: Resizes images to size × size.
        channels: 1 or 3; by default 1 if all images are gray.

    Raises:
        BadInput: If the folder or its images can't be read.
    """
    require(root.is_dir(), f"{root}: no such folder; give the path of a folder of images")
    return decode_list(root, list_pictures(root, names), size, channels)


def list_pictures(root: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """List the image files of a folder that has one folder per class, with their classes."""
    return [(picture, c) for c, name in enumerate(names) if (root / name).is_dir() for picture in pictures(root / name)]


def decode_list(
    root: Path, listed: Sequence[tuple[Path, int]], size: int | None = None, channels: int | None = None
) -> Samples:
    """Read image files and their classes as samples; see `decode`."""
    require(listed, f"{root}: no PNG, JPEG or WebP images in its class folders")
    files = [images.Source(str(path), path) for path, _ in listed]
    logger.info("decoding %d images of %s", len(listed), root)
    x = images.decode(files, size, channels)
    return Samples(torch.from_numpy(x), torch.tensor([c for _, c in listed], dtype=torch.int64))


def cached(root: Path, key: str, listed: Sequence[tuple[Path, int]], size: int | None, channels: int) -> Samples:
    """Read images like `decode_list`, or from the cache of an earlier call if the list of files is unchanged."""
    listing = "\n".join(f"{path.relative_to(root)}\t{c}" for path, c in listed)
    digest = hashlib.sha256(listing.encode()).hexdigest()[:16]
    cache = root / f".fedhead-{key}-{digest}.npz"
    if cache.is_file():
        try:
            arrays = read_npz(cache)
            return Samples(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))
        except (BadInput, KeyError):
            cache.unlink(missing_ok=True)  # incomplete or damaged: decode again
    data = decode_list(root, listed, size, channels)
    if os.access(root, os.W_OK):
        with atomic(cache) as draft, draft.open("wb") as file:
            np.savez(file, x=tensors_of(data.x)[0].numpy(), y=data.y.numpy())
    return data
