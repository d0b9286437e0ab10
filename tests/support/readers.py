"""Kinds of files that fedhead reads, each with a sound one, what reads it, and changes that keep its structure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutations import MEMORY, mutate_value

from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder

RECIPE = Recipe(
    dataset="digits",
    rounds=3,
    clients=3,
    model_parameters={"hidden": [8]},
    method="fedprox",
    method_parameters={"mu": 0.1},
)
ROW = {
    "round": 1,
    "lr": 0.05,
    "bytes_up": 7320,
    "bytes_down": 7320,
    "participants": 3,
    "accuracy": 16.6,
    "seconds": 0.1,
}
ROW |= {"per_class": [97.2, None, 2.8], "personal": 4.2, "clients": [0.0, 12.5, None], "metrics": {"f1": 0.4}}
STAGE = {"accuracy": 3.0, "personal": None, "per_class": [1.0], "bytes_up": 1, "bytes_down": 1, "seconds": 0.5}
RESULT = {**ROW, "run": "r", "seed": 0, "stages": {"ccvr": STAGE}}
ABOUT = {
    "executor": "loop",
    "device": "cpu",
    "precision": "fp32",
    "threads": 1,
    "versions": {"fedhead": "0.1.0"},
    "components": [{"kind": "method", "name": "mine.py:A", "module": "mine", "file": "/tmp/mine.py", "digest": "ab"}],
}

Generate = Callable[[random.Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A kind of file: a sound one, what reads it, and changes that keep its structure."""

    sound: bytes
    file: Path
    read: Callable[[], Any]
    structured: Generate | None = None
    memory: int = MEMORY  # bytes that reading may take besides twenty times the file's size


def as_json(value: Any) -> Generate:
    """JSON is YAML too, so that structured changes of either are written as JSON."""
    return lambda rng: json.dumps(mutate_value(value, rng)).encode()


def run_folder(folder: Path) -> RunFolder:
    made = RunFolder.create(folder, RECIPE)
    rows = [{**ROW, "round": n} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made
