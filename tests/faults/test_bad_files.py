"""Paths that are not regular files, and values far out of range: one line, exit code 2, and 3 for a machine failure."""

from __future__ import annotations

import errno
import gzip
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedhead.calibration.files import load_statistics
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.treefile import load_metadata, load_tree
from fedhead.data.federation.federation import Federation
from fedhead.data.sources import dataset_files
from fedhead.flower.config import ServerFile, SiteFile
from fedhead.papers.tables import reproduce
from fedhead.papers.tables.results import Results
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import run as running
from fedhead.runs.run_folder import RunFolder

pytestmark = pytest.mark.timeout(60)  # a reader that opens a pipe waits for ever


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.mkdir()


def in_run(name: str, read: Callable[[RunFolder], object]) -> tuple[str, Callable[[Path], object]]:
    return f"run/{name}", lambda path: read(RunFolder.open(path.parent))


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "recipe": ("mine.yaml", load),
    "site.yaml": ("site.yaml", SiteFile.read),
    "server.yaml": ("server.yaml", ServerFile.read),
    "federation": ("data.npz", Federation.load),
    "checkpoint": ("a.safetensors", load_tree),
    "metadata": ("a.safetensors", load_metadata),
    "statistics": ("a.safetensors", load_statistics),
    "results": ("results.csv", lambda path: Results(path.parent)),
    "idx": ("train-images-idx3-ubyte", dataset_files.idx),
    "metrics": in_run("metrics.jsonl", lambda folder: folder.metrics()),
    "environment": in_run("environment.json", lambda folder: folder.environment()),
    "result": in_run("result.json", lambda folder: folder.result()),
    "partition": in_run("partition.npz", lambda folder: folder.split()),
    "config": ("run/config.yaml", lambda path: RunFolder.open(path.parent)),
}


MAY_BE_ABSENT = ("metrics", "result", "partition")


@pytest.mark.parametrize("special", [fifo, device, circle, folder])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_not_opened(name: str, special: Callable[[Path], None], tmp_path: Path) -> None:
    file, read = READERS[name]
    path = tmp_path / file
    if path.parent != tmp_path:
        RunFolder.create(path.parent, Recipe(dataset="digits"))
        path.unlink(missing_ok=True)
    special(path)
    if special is circle and name in MAY_BE_ABSENT:  # a link to nothing is a file that is not there yet
        assert not read(path)
    else:
        with pytest.raises(BadInput):
            read(path)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"k{i}: {i}\n" for i in range(300)),
        "lr: " + "9" * 400,
        "clients: " + "9" * 400,
        "batch_size: 1" + "0" * 18,
        "rounds: " + "9" * 5_000,
        "lr: " + "[" * 400,
        "lr: &a [*a]",
        "lr: [&a0 [x], " + ", ".join(f"&a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)) + "]",
        "# " + "x" * 2**20,
        "? {a: 1}\n: 2",
        "lr: !!python/object/apply:os.system [echo]",
    ],
    ids=lambda text: text[:20],
)
def test_yaml_that_is_too_much_is_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert call(["validate", str(tmp_path / "mine.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert len(said) < 2_100


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs"), 3),
        (OSError(errno.EIO, "Input/output error", "runs"), 3),
        (MemoryError(), 3),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 8 bytes"), 3),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: 8 bytes"), 3),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), 3),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 2),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "runs"), 2),
    ],
    ids=repr,
)
def test_the_exit_code_says_whether_the_user_or_the_machine_failed(
    error: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(running, "RunWriter", fail)
    assert call(["run", "digits", "--out", str(tmp_path / "run")]) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert ("continue the run with --resume" in said) == (code == 3)


@pytest.mark.parametrize("words", [["--dry-run"], []], ids=["dry", "real"])
def test_a_command_without_resume_does_not_name_that_option(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(reproduce, "plan", fail)
    assert call(["reproduce", "ccvr/table2", "--out", str(tmp_path / "out"), *words]) == 3
    said = capsys.readouterr().err
    assert "--resume" not in said
    assert "give the command again" in said if words else "the same command goes on" in said


def npy(header: bytes, data: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }",  # OverflowError in numpy
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,), }",  # 75 GiB
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,",  # tokenize.TokenError in numpy
        b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
        b"(" * 3_000,
    ],
    ids=lambda header: header[-24:].decode(),
)
def test_a_damaged_header_of_an_array_is_refused(header: bytes, tmp_path: Path) -> None:
    data = npy(header, bytes(16))
    for name in ("data.npz", "partition.npz"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.npy", data)
            archive.writestr("y.npy", data)
            archive.writestr("counts.npy", data)
    with pytest.raises(BadInput, match=r"data\.npz"):
        Federation.load(tmp_path / "data.npz")
    with pytest.raises(BadInput, match=r"partition\.npz"):
        RunFolder(tmp_path, Recipe(dataset="digits")).split()


def test_an_array_that_is_longer_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((5_000, 2)), y=np.zeros(5_000, int))  # larger than the buffer of zipfile
    path.write_bytes(path.read_bytes().replace(b"(5000, 2)", b"(1000, 2)").replace(b"(5000,)", b"(1000,)"))
    with pytest.raises(BadInput, match=r"data\.npz: .*x\.npy is longer than its header says"):
        Federation.load(path)


def test_a_gzip_file_that_unpacks_to_far_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "_UNPACKED", 1 << 20)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(bytes(1 << 21)))
    with pytest.raises(BadInput, match="when unpacked"):
        dataset_files.idx(path)


def test_a_label_that_is_no_row_of_samples_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 2)), y=np.array(1), site=np.zeros(3))
    with pytest.raises(BadInput, match="y is a single value"):
        Federation.load(tmp_path / "data.npz")


@pytest.mark.parametrize("name", ["a" * 5_000, "~nobody-of-this-name/x", "a\0b"])
def test_a_name_that_can_be_no_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown recipe|is not there"):
        load(name)
    (tmp_path / "server.yaml").write_text(f"recipe: {json.dumps(name)}\nsites: [a]\n")
    with pytest.raises(BadInput, match=r"unknown recipe|is not there"):
        ServerFile.read(tmp_path / "server.yaml").recipe_of_run()


@pytest.mark.parametrize("classes", [2**63, 10**15, 0, -1])
def test_a_federation_of_an_impossible_number_of_classes_is_refused(classes: int, tmp_path: Path) -> None:
    path = tmp_path / "federation.npz"
    Federation.from_arrays(np.zeros((6, 2)), np.arange(6) % 3, clients=2).save(path)
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    np.savez(path, **arrays | {"classes": np.array(classes, np.uint64 if classes > 0 else np.int64)})
    with pytest.raises(BadInput, match="classes"):
        Federation.load(path)


@pytest.mark.parametrize("sides", [(-1, -18), (2**30, 2**30, 2**30, 2**30, 0), (2**31 - 1,)])
def test_idx_files_of_impossible_sides_are_refused(sides: tuple[int, ...], tmp_path: Path) -> None:
    header = bytes([0, 0, 8, len(sides)]) + b"".join(side.to_bytes(4, "big", signed=True) for side in sides)
    (tmp_path / "idx").write_bytes(header + bytes(18 if sides[0] < 0 else 0))
    with pytest.raises(BadInput, match="idx"):
        dataset_files.idx(tmp_path / "idx")
