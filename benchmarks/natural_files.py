"""Files whose clients are natural: what they hold, how they are read and trained, and the loop over all of a folder."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedhead as fh

Row = dict[str, Any]


@dataclass(frozen=True)
class Compute:
    """How the federations of one kind are read and trained."""

    model: str
    rounds: int = 30
    lr: float = 1e-3
    batch_size: int = 32
    epochs: int | None = None  # local epochs; None: 5 for small clients, otherwise 1
    reading: dict[str, Any] = field(default_factory=dict)  # arguments of Federation.load
    ccvr: fh.CCVR = field(default_factory=fh.CCVR)

    def epochs_of(self, federation: fh.Federation) -> int:
        """Return the local epochs, so that a round has enough steps."""
        return self.epochs or (5 if max(federation.sizes) < SMALL else 1)


SMALL = 700  # samples of the largest client: below it a round is too few steps at the usual settings
TABLE = {"missing": "mean", "normalize": "standard"}
KINDS = {
    "table": Compute("mlp(hidden=[64, 64])", reading=TABLE),
    "series": Compute("mlp(hidden=[128, 64])", reading={"normalize": "standard"}),
    "text": Compute("mlp(hidden=[64])", rounds=10, reading={"encode": "hashing(2048)"}),
    "small texts": Compute("mlp(hidden=[64])", rounds=10, lr=1e-2, reading={"encode": "hashing(2048)"}),
    "sound": Compute("mlp(hidden=[128, 64])", reading={"encode": "spectrogram(1.0)", "normalize": "standard"}),
    "images": Compute("digitscnn", rounds=15, reading={"normalize": "standard"}),
    "files": Compute(
        "digitscnn(channels=32)", rounds=20, reading={"size": 32, "normalize": "standard", "augment": "flip"}
    ),
}


def kind_of(path: Path) -> str:
    """Return which kind of data a file holds."""
    with np.load(path) as held:
        names = set(held.files)
        axes = held["x"].ndim if "x" in names else 0
        largest = int(np.unique(held["site"], return_counts=True)[1].max())
    if "text" in names:
        return "text" if largest >= SMALL else "small texts"
    if "offsets" in names:
        return "sound" if "rate" in names else "files"
    return "table" if axes == 2 else "series" if "channel_names" in names else "images"


def load(path: Path, seed: int, **reading: Any) -> fh.Federation:
    """Read a file; a fifth of each client's samples is for testing, or whole recordings where samples overlap."""
    with np.load(path) as held:
        test: Any = held["run"] % 5 == 0 if "run" in held.files else 0.2
    return fh.Federation.load(path, test=test, seed=seed, **reading)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all comparisons of natural federations take."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("--files", nargs="+", metavar="NAME", help="names of files, without .npz; all by default")
    made.add_argument("--out", type=Path, default=Path("natural.csv"))
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--jobs", type=int, default=1, help="measure so many files at a time, each in its own process")
    return made


def run(
    options: argparse.Namespace,
    columns: Iterable[str],
    measure: Callable[[Path, list[Row]], Iterable[Row]],
    kinds: Container[str] = KINDS,
) -> list[Row]:
    """Measure the files of a folder, the smallest first, and write each row to the CSV file as soon as it is there.

    Rows that the CSV file holds already are kept. A file that can't be measured is named, and the others go on.

    Args:
        options: What `parser` found.
        columns: Columns of the CSV file.
        measure: Yields the rows of a file; it is given those that there are already.
        kinds: Kinds of data that are measured.
    """
    torch.set_num_threads(options.threads)
    rows = read(options.out)
    there = {path.stem: path for path in options.folder.glob("*.npz")}
    for name in set(options.files or there) - set(there):
        raise SystemExit(f"{options.folder} has no file {name}.npz: it has {', '.join(sorted(there))}")
    paths = [path for name, path in there.items() if name in (options.files or there) and kind_of(path) in kinds]
    paths.sort(key=lambda path: path.stat().st_size)
    if options.jobs > 1:
        return _side_by_side([path.stem for path in reversed(paths)], options, columns)
    for path in paths:
        try:
            for row in measure(path, [row for row in rows if row["file"] == path.stem]):
                rows.append({name: str(value) for name, value in row.items()})
                write(options.out, columns, rows)
        except fh.BadInput as error:
            print(f"{path.stem}: {error}", flush=True)
    return rows


def _side_by_side(names: Sequence[str], options: argparse.Namespace, columns: Iterable[str]) -> list[Row]:
    """Measure several files at a time by this same command, each into a CSV file beside the one that they then make."""
    rows = read(options.out)

    def measure_alone(name: str) -> list[Row]:
        own = options.out.with_suffix(f".{name}.csv")
        write(own, columns, [row for row in rows if row["file"] == name])
        command = [sys.executable, *sys.argv, "--jobs", "1", "--out", own, "--files", name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # its own tables
        print(f"{name}: done", flush=True)
        return read(own)

    with ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(names, pool.map(measure_alone, names), strict=True))
    rows = [row for row in rows if row["file"] not in found] + [row for name in sorted(found) for row in found[name]]
    write(options.out, columns, rows)
    for name in names:
        options.out.with_suffix(f".{name}.csv").unlink()
    return rows


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> None:
    """Write rows to a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
