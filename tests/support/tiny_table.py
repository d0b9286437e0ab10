"""A tiny table of a paper, whose runs take a moment, and the rows of its results."""

from __future__ import annotations

import csv
from pathlib import Path

from fedhead.engine.experiment.compute import Compute
from fedhead.papers.tables.paper_tables import PaperTable, parse
from fedhead.papers.tables.results import FILE

CPU = Compute(device="cpu", executor="loop")
TINY = """
# A tiny table
paper: ccvr
table: 2
seeds: {full: 2, small: 1}
base: {dataset: digits, subset: 120, clients: 3, rounds: 2, model: mlp, model.hidden: [8], stage.ccvr.epochs: 1}
axes:
  data:
    mild: {set: {partition: dirichlet(0.5)}, find: {dataset: cifar10, partition: dirichlet(0.5)}}
    hard: {seeds: [4, 5], set: {partition: dirichlet(0.1)}, find: {dataset: cifar10, partition: dirichlet(0.1)}}
  method:
    fedavg: {set: {method: fedavg}, find: {method: fedavg}}
    fedprox: {set: {method: fedprox}, find: {method: fedprox}}
  stage:
    before: {find: {stage: none}}
    ccvr: {stage: ccvr, set: {stage.ccvr.samples: 5}, find: {stage: ccvr}}
variants:
  tukey: {when: {stage: ccvr}, set: {stage.ccvr.tukey: real}}
  strong: {when: {method: fedprox}, set: {method.mu: 0.5}}
  both: {all_of: [tukey, strong]}
"""


def tiny(**changes: str) -> PaperTable:
    text = TINY.lstrip()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse("paper/tiny", text)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / FILE).open() as file:
        return list(csv.DictReader(file))
