"""Federations whose clients are natural: local training, FedAvg, calibrated, personal and one-round heads compared.

    python benchmarks/natural_methods.py FOLDER --out benchmarks/natural.csv
    python benchmarks/natural_methods.py FOLDER --files heart4 icu4 --methods fedavg fedprox raw --heads ridge lda

trains the methods on the tables, texts, series and sounds of a folder (the layout is in docs/data_files.md) for several
seeds, computes heads after FedAvg and in one round, writes one CSV row per file, seed and method as soon as it is done,
and prints the tables of docs/natural.md (--show: of the rows that there are). Rows that the CSV file holds already are
kept. Settings belong to a kind of data (`KINDS` of natural_files.py), not to a file; for time there are half as many
rounds, and batches of 64.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from natural_files import KINDS, Row, kind_of, load, parser, run
from torch import nn

import fedhead as fh
from fedhead.methods import METHODS
from fedhead.report.compare.statistics import interval
from fedhead.stages.ccvr import CCVR

BATCH, RAW = 64, 300  # RAW: the most features of which heads are computed without any network
COLUMNS = ("file", "seed", "method", "mean_client", "pooled", "worst_client", "clients")
BASELINE = "FedAvg"
KINDS_COMPARED = ("table", "text", "small texts", "series", "sound")
TEXTS = ("text", "small texts")
LABELS = {"local": "local training", "fedavg": BASELINE, "ditto": "Ditto", "fedetf": "FedETF"}
GIVEN: dict[str, Any] = {"fedetf": fh.FedETF(absent="mask")}  # its paper's Eq. 6
ONE_ROUND = {"random": "random features", "raw": "raw features", "pretrained": "WordLlama"}
ALL = [*LABELS, *ONE_ROUND]
NEVER: dict[str, Any] = {"absent": "never"}
HEADS: dict[str, tuple[str, Any]] = {
    "ccvr": ("CCVR", CCVR(samples=500)),
    "ridge": ("ridge", fh.Ridge(**NEVER)),
    "lda": ("LDA", fh.LDA(**NEVER)),
    "personal_ridge": ("personal ridge", fh.PersonalRidge(**NEVER)),
    "personal_lda": ("personal LDA", fh.PersonalLDA(**NEVER)),
    "finetune": ("fine-tuning", fh.FineTune()),
}
CLOSED_FORM = ("ridge", "lda", "personal_ridge", "personal_lda")


@dataclass(frozen=True)
class Plan:
    """One run and the stages after it: each stage's models are one more method of the comparison."""

    method: str
    label: str  # of the run's own models; empty: there are none
    stages: dict[str, Any]  # stages by their label

    @property
    def labels(self) -> set[str]:
        """The methods of the comparison that it yields."""
        return {self.label, *self.stages} - {""}


def plan(method: str, heads: Sequence[str]) -> Plan:
    """Return what is run for a method: heads follow FedAvg, or stand alone on features that no client trained."""
    if method in ONE_ROUND:
        chosen = {f"one round, {ONE_ROUND[method]}: {HEADS[h][0]}": HEADS[h][1] for h in heads if h in CLOSED_FORM}
        return Plan(method, "", chosen)
    label, chosen = LABELS.get(method, method), {}
    if method == "fedavg":
        chosen = {f"{label} + {HEADS[h][0]}": HEADS[h][1] for h in heads}
    elif method == "fedetf" and "finetune" in heads:
        chosen = {f"{label} + {HEADS['finetune'][0]}": fh.FineTuneETF(iterations=3, epochs=1, record=False)}
    return Plan(method, label, chosen)


def fits(method: str, kind: str, federation: fh.Federation) -> bool:
    """Return whether there is such a method for this data: raw features must be few, WordLlama is for texts."""
    return {"raw": _size(federation) <= RAW, "pretrained": kind in TEXTS}.get(method, True)


def measure(path: Path, seed: int, plans: Sequence[Plan]) -> Iterator[Row]:
    """Run the plans on a file, and yield one row per method."""
    kind = kind_of(path)
    settings = KINDS[kind]
    federation = load(path, seed, **settings.reading)
    rounds = settings.rounds // 2
    for each in plans:
        if not fits(each.method, kind, federation):
            continue
        data, model, method = federation, settings.model, GIVEN.get(each.method, each.method)
        if each.method in ONE_ROUND:
            data, model = features(each.method, path, seed, federation)
            method = "fedavg"
        result = fh.run(
            data,
            model,
            method,
            rounds=rounds if each.label else 0,
            local_epochs=settings.epochs_of(federation) if each.label else 1,
            batch_size=BATCH,
            optimizer="adam",
            lr=settings.lr,
            stages=list(each.stages.values()),
            evaluate_every=rounds,
            executor="stack",
            seed=seed,
        )
        records = {each.label: result.rows[-1]} if each.label else {}
        records |= {label: result.stage_rows[stage.name] for label, stage in each.stages.items()}
        for label, record in records.items():
            clients = [value for value in record["clients"] if value is not None]
            yield {
                "file": path.stem,
                "seed": seed,
                "method": label,
                "mean_client": f"{fmean(clients):.3f}",
                "pooled": f"{record['personal_weighted']:.3f}",
                "worst_client": f"{min(clients):.3f}",
                "clients": " ".join(f"{value:.2f}" for value in clients),
            }


def features(name: str, path: Path, seed: int, federation: fh.Federation) -> tuple[fh.Federation, Any]:
    """Return the data and the model of a head in one round: 512 random ReLU features, WordLlama's, or the inputs."""
    if name == "random":
        return federation, "mlp(hidden=[512])"
    if name == "pretrained":
        return fh.extract_features(load(path, seed, encode="wordllama(128)"), "wordllama"), "mlp(hidden=[])"
    alone = nn.Sequential(nn.Flatten(), nn.Linear(_size(federation), federation.classes))
    return federation, fh.split(alone, classifier="1")


def _size(federation: fh.Federation) -> int:
    return int(torch.tensor(federation.input_shape).prod())


# -- tables -------------------------------------------------------------------------------------------
def of_clients(rows: list[Row], file: str, method: str) -> list[float]:
    """Return each client's accuracy, the mean over seeds."""
    found = [list(map(float, row["clients"].split())) for row in rows if (row["file"], row["method"]) == (file, method)]
    return [fmean(values) for values in zip(*found, strict=True)]


def of_seeds(rows: list[Row], file: str, method: str, column: str) -> dict[str, float]:
    """Return a column by seed."""
    return {row["seed"]: float(row[column]) for row in rows if (row["file"], row["method"]) == (file, method)}


def shown(mean: str, differences: list[float]) -> str:
    """Return a mean and the 95 % t-interval of differences from the baseline."""
    found = interval(differences)
    return mean if found is None or not any(differences) else f"{mean} ({found[0]:+.1f} … {found[1]:+.1f})"


def table(head: Sequence[str], body: dict[str, list[str]]) -> str:
    """Return a table in Markdown with one row per method."""
    lines = [f"| {' | '.join(['method', *head])} |", "|---|" + "--:|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join([method, *cells])} |" for method, cells in body.items())])


def by_clients(rows: list[Row], files: Sequence[str], methods: Sequence[str]) -> str:
    """Return the accuracies by file, with intervals of the differences paired by client."""

    def cell(file: str, method: str) -> str:
        own, base = of_clients(rows, file, method), of_clients(rows, file, BASELINE)
        return shown(f"{fmean(own):.1f}", [a - b for a, b in zip(own, base, strict=False)]) if own else "–"

    return table(files, {method: [cell(file, method) for file in files] for method in methods})


def by_seeds(rows: list[Row], files: Sequence[str], methods: Sequence[str]) -> str:
    """Return the differences of the mean client by file, with intervals paired by seed."""

    def cell(file: str, method: str) -> str:
        own, base = (of_seeds(rows, file, name, "mean_client") for name in (method, BASELINE))
        gaps = [own[seed] - base[seed] for seed in own if seed in base]
        return shown(f"{fmean(gaps):+.1f}", gaps) if gaps else "–"

    return table(files, {method: [cell(file, method) for file in files] for method in methods if method != BASELINE})


def by_files(rows: list[Row], files: Sequence[str], methods: Sequence[str]) -> str:
    """Return the mean differences over files, with intervals paired by file."""
    body = {}
    for method in methods:
        gaps: dict[str, list[float]] = {"mean_client": [], "worst_client": []}
        for file in files:
            for column, found in gaps.items():
                own, base = (of_seeds(rows, file, name, column) for name in (method, BASELINE))
                if own and base:
                    found.append(fmean(own.values()) - fmean(base.values()))
        if method != BASELINE and gaps["mean_client"]:
            cells = [shown(f"{fmean(found):+.1f}", found) for found in gaps.values()]
            body[method] = [str(len(gaps["mean_client"])), *cells]
    return table(["files", f"mean client − {BASELINE}", f"worst client − {BASELINE}"], body)


def tables(rows: list[Row]) -> str:
    """Return all tables."""
    files, known = sorted({row["file"] for row in rows}), [plan(method, list(HEADS)) for method in ALL]
    order = [label for each in known for label in (each.label, *each.stages)]
    found = dict.fromkeys(row["method"] for row in rows)
    methods = [*(label for label in order if label in found), *(label for label in found if label not in order)]
    return "\n\n".join(each(rows, files, methods) for each in (by_clients, by_seeds, by_files))


def main() -> None:
    """Compare the methods on all files of a folder, or on those that are named."""
    arguments = parser(__doc__)
    arguments.add_argument("--methods", nargs="+", default=ALL, choices=sorted({*METHODS, *ONE_ROUND}), metavar="NAME")
    arguments.add_argument("--heads", nargs="*", default=list(HEADS), choices=list(HEADS), metavar="NAME")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--show", action="store_true", help="print the tables of the rows that there are")
    options = arguments.parse_args()
    plans = [plan(method, options.heads) for method in options.methods]
    begin = time.perf_counter()

    def rows_of(path: Path, there: list[Row]) -> Iterator[Row]:
        for seed in range(0 if options.show else options.seeds):
            done = {row["method"] for row in there if row["seed"] == str(seed)}
            yield from measure(path, seed, [each for each in plans if not each.labels <= done])
            seconds = f"{time.perf_counter() - begin:.0f} s, {time.process_time():.0f} s of CPU"
            print(f"{path.stem}, seed {seed}: after {seconds}", flush=True)

    print(tables(run(options, COLUMNS, rows_of, KINDS_COMPARED)))


if __name__ == "__main__":
    main()
