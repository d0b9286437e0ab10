"""Folders of images: read as they are meant, or refused by name."""

import contextlib
import io
import os
import pathlib
import resource
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.sources import images


def picture(path, value, size=(6, 5), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_a_folder_per_class(tmp_path):
    for name, value in (("cat", (10, 20, 30)), ("dog", (40, 50, 60))):
        for i in range(3):
            picture(tmp_path / name / f"{i}.png", value)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    fed = Federation.load(tmp_path, clients=2)
    assert fed.class_names == ("cat", "dog")
    assert fed.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert fed.input_shape == (3, 5, 6)
    assert fed.train.x[4, :, 0, 0].tolist() == [40, 50, 60]


def test_a_folder_per_client_with_train_and_test(tmp_path):
    for site, name in (("north", "a"), ("north", "b"), ("south", "b"), ("south", "c")):
        picture(tmp_path / "train" / site / name / "0.png", 7, mode="L")
    picture(tmp_path / "test" / "c" / "0.png", 9, mode="L")
    fed = Federation.load(tmp_path)
    assert fed.sizes == (2, 2)
    assert fed.class_names == ("a", "b", "c")
    assert fed.train.y.tolist() == [0, 1, 1, 2]
    assert fed.test.y.tolist() == [2]
    assert fed.input_shape == (1, 5, 6)


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        Federation.load(tmp_path / "none")
    with pytest.raises(BadInput, match="one folder of images per class"):
        Federation.load(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(BadInput, match="no PNG, JPEG or WebP images"):
        Federation.load(tmp_path)
    picture(tmp_path / "cat" / "0.png", (1, 2, 3))
    picture(tmp_path / "cat" / "1.png", (1, 2, 3), size=(9, 9))
    with pytest.raises(BadInput, match=r"^\S+1\.png: an image of 9x9 among others of 6x5"):
        Federation.load(tmp_path)
    assert Federation.load(tmp_path, size=4, clients=1).input_shape == (3, 4, 4)
    (tmp_path / "cat" / "0.png").write_bytes(b"\x89PNG nonsense")
    with pytest.raises(BadInput, match=r"0\.png: not a readable image"):
        Federation.load(tmp_path, size=4)


def write_wide(path, pixels):
    """Write a gray PNG of 16 bits per pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint16)).save(path)


def test_images_of_16_bits_are_refused(tmp_path):
    write_wide(tmp_path / "cat" / "0.png", np.array([[0, 256, 65535]]))
    with pytest.raises(BadInput, match=r"0\.png: 16 bits per pixel; scale it to 8 bits first"):
        Federation.load(tmp_path, clients=1)


def test_colors_stay_although_the_first_image_is_gray(tmp_path):
    picture(tmp_path / "cat" / "0.png", 7, mode="L")
    picture(tmp_path / "cat" / "1.png", (1, 2, 3))
    fed = Federation.load(tmp_path, clients=1)
    assert fed.train.x[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]


def test_other_formats_are_not_opened(tmp_path):
    picture(tmp_path / "cat" / "0.png", (1, 2, 3))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\nshowpage\n"
    for data in (postscript, _encoded("GIF"), _encoded("TIFF"), b"", b"\x89PNG nonsense"):
        (tmp_path / "cat" / "1.png").write_bytes(data)
        with pytest.raises(BadInput, match=r"1\.png: not a readable image of the formats PNG, JPEG, WEBP$"):
            Federation.load(tmp_path, clients=1)


def _encoded(kind):
    file = io.BytesIO()
    Image.new("RGB", (6, 5)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("side", [9_000, 15_000, 60_000])  # above our limit, Pillow's warning, Pillow's error
def test_decompression_bombs_are_refused(tmp_path, side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes(1000))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )
    with pytest.raises(BadInput, match=r"0\.png: an image of .*67,108,864 pixels; resize it first"):
        Federation.load(tmp_path, size=4, clients=1)


def test_pipes_and_devices_are_not_opened(tmp_path):
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "0.png")
    with pytest.raises(BadInput, match=r"0\.png: not a regular file"):
        Federation.load(tmp_path, clients=1)
    for target in (tmp_path / "cat" / "0.png", "/dev/zero"):
        link = tmp_path / "dog" / "0.png"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(BadInput, match="not a regular file"):
            images.decode([images.Source(str(link), link)])
    link.unlink()
    link.symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BadInput, match="there is no such file"):
        images.decode([images.Source(str(link), link)])


@pytest.mark.parametrize(("size", "says"), [(0, "size: 0 is out of range"), (10**6, "at most 8192"), ("4", "whole")])
def test_wrong_sizes_are_refused(tmp_path, size, says):
    picture(tmp_path / "cat" / "0.png", (1, 2, 3))
    with pytest.raises(BadInput, match=says):
        Federation.load(tmp_path, size=size, clients=1)


def test_a_part_that_claims_gigabytes_is_not_allocated(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 8, 3), np.uint8)).save(file, "PNG")
    whole = bytearray(file.getvalue())
    place = whole.index(b"IDAT") - 4
    whole[place : place + 4] = b"\xff\xff\x00\xec"
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(whole)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    try:
        with contextlib.suppress(BadInput):  # Pillow reads what is there, or refuses it
            Federation.load(tmp_path, clients=1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
