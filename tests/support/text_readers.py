"""Readers of texts: the files of a run folder, recipes, a deployment's files, results, messages."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import random
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from mutations import mutate_value
from readers import ABOUT, RESULT, Reader, as_json, run_folder

from fedhead.core.system.yaml_text import write_yaml
from fedhead.core.tree.tree import Tree, Weights
from fedhead.flower.config import ServerFile, SiteFile
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Response, read_response, to_json
from fedhead.papers.tables.results import Measurement, Results
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.run_folder import RunFolder


def config(folder: Path) -> Reader:
    made = run_folder(folder / "run")
    default = Recipe(dataset="digits").flat()  # a whole one takes ten times as long to read
    keys = {
        k: v
        for k, v in made.recipe.flat().items()
        if default.get(k, ...) != v or k in ("lr", "betas", "partition_seed")
    }
    file = made.path / "config.yaml"
    return Reader(write_yaml(keys).encode(), file, lambda: RunFolder.open(made.path), as_json(keys))


def recipe(folder: Path) -> Reader:
    keys = {"dataset": "digits", "rounds": 3, "method": "fedprox", "method.mu": 0.1, "stages": ["ccvr"], "lr": 0.1}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    file = folder / "recipe.yaml"
    return Reader(text.encode(), file, lambda: load(file), as_json(keys))


def site(folder: Path) -> Reader:
    keys = {"name": "site-1", "data": "data.npz", "client_test": 0.2, "paths": ["/data"], "max_seconds": 60.5}
    keys |= {"model_parameters": {"hidden": [8]}, "threads": 1}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    file = folder / "site.yaml"
    return Reader(text.encode(), file, lambda: SiteFile.read(file), as_json(keys))


def server(folder: Path) -> Reader:
    keys = {"recipe": "digits", "sites": ["a", "b"], "classes": ["x", "y"], "shape": [1, 8, 8], "quorum": 1}
    keys |= {"round_seconds": 5.0, "set": ["rounds=2"]}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    file = folder / "server.yaml"
    return Reader(text.encode(), file, lambda: ServerFile.read(file).recipe_of_run(), as_json(keys))


def metrics(folder: Path) -> Reader:
    made = run_folder(folder / "run")
    file = made.path / "metrics.jsonl"
    return Reader(file.read_bytes(), file, made.metrics)


def result(folder: Path) -> Reader:
    made = run_folder(folder / "run")
    return Reader(json.dumps(RESULT).encode(), made.path / "result.json", made.result)


def environment(folder: Path) -> Reader:
    made = run_folder(folder / "run")
    made.save_environment(ABOUT)
    file = made.path / "environment.json"
    return Reader(file.read_bytes(), file, made.environment)


def results_csv(folder: Path) -> Reader:
    kinds: dict[str, Any] = {"str": "text", "int": 3}
    values = {f.name: kinds.get(str(f.type), 1.5) for f in dataclasses.fields(Measurement)}
    values |= {"bytes_up": 3, "bytes_down": 3, "together": 1}
    for number in range(3):
        Results(folder).add(Measurement(**values | {"seed": number}))
    file = folder / "results.csv"
    rows = list(csv.reader(file.read_text().splitlines()))

    def structured(rng: random.Random) -> bytes:
        found = [list(row) for row in rows]
        row = rng.choice(found)
        row[rng.randrange(len(row))] = rng.choice(
            ("", "nan", "1e999", "9" * 400, "-1", "x\ny", '"', "é", "1_000", "\0")
        )
        out = io.StringIO()
        csv.writer(out).writerows(found)
        return out.getvalue().encode()

    return Reader(file.read_bytes(), file, lambda: list(Results(folder)), structured)


def message(folder: Path) -> Reader:
    """A response on the wire; the file holds its three texts and blobs, which the reader puts together."""
    own = Tree(model=Weights({"w": torch.rand(2, 3), "n": torch.ones(1, dtype=torch.int64)}, ["n"]))
    response = to_json(Response("site-1", "0.1.0", "ab" * 8, 1, "train", samples=5, steps={"a": 3.0}))
    top = wire.pack(response, {"send": own}).config_records["fedhead"]
    blob = top["tensors"]
    assert isinstance(blob, bytes)
    parts = [str(top["header"]), str(top["trees"])]
    file = folder / "message"
    sound = "\x1e".join(parts).encode() + b"\x1e" + blob

    def read() -> None:
        header, trees, data = [*file.read_bytes().split(b"\x1e", 2), b"", b""][:3]
        texts = {"header": header.decode("utf-8", "replace"), "trees": trees.decode("utf-8", "replace")}
        content = RecordDict({"fedhead": ConfigRecord({"format": wire.FORMAT, **texts, "tensors": data})})
        found, _ = wire.unpack(content, {"send": own})
        read_response(found)
        wire.unpack(content)

    def structured(rng: random.Random) -> bytes:
        header, trees = (json.loads(part) for part in parts)
        if rng.random() < 0.5:
            header = mutate_value(header, rng)
        else:
            trees = mutate_value(trees, rng)
        return "\x1e".join((json.dumps(header), json.dumps(trees))).encode() + b"\x1e" + blob

    return Reader(sound, file, read, structured)
