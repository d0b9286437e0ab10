"""The papers' pages: their tables and their sentences have the numbers of results/results.csv."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.published import published
from fedhead.papers.tables.results import Measurement, Results, digest

ROOT = Path(__file__).parents[2]


PAGES = {name: ROOT / "docs" / "papers" / f"{name}.md" for name in ("ccvr", "fedetf", "fedclassavg")}


@cache
def page(name: str) -> str:
    """Return a page as one line of text; rows of tables keep theirs."""
    return re.sub(r"(?<!\|)\n(?!\|)\s*", " ", PAGES[name].read_text(encoding="utf-8"))


def rows(path: Path, first: str) -> list[str]:
    """Return the rows of a page's tables whose first column begins so."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {first}")]


@pytest.mark.parametrize("table", tables.names())
def test_counts_of_a_table_are_those_of_the_results_page(table: str) -> None:
    (counted,) = rows(ROOT / "results" / "README.md", f"`{table}`")
    (shown,) = rows(PAGES[table.partition("/")[0]], f"`{table}`")
    assert shown.startswith(counted)  # copy the row from results/README.md, and revise its last column


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_shown_with_their_numbers(name: str) -> None:
    text, folder = page(name), ROOT / "results" / "figures" / name
    shown = set(re.findall(rf"results/figures/{name}/([\w-]+)\.svg", text))
    assert shown == {path.stem for path in folder.glob("*.svg")}
    assert {path.stem for path in folder.glob("*.csv")} == {figure.partition("-")[0] for figure in shown}


@cache
def results() -> Results:
    return Results(ROOT / "results")


@cache
def table(name: str) -> tables.PaperTable:
    return tables.load(name)


@cache
def cells(name: str) -> dict[str, tables.PaperCell]:
    return {cell.name: cell for cell in table(name).cells()}


@cache
def measured(name: str, cell: str, variant: str) -> list[Measurement]:
    varied = table(name).as_in(cells(name)[cell], variant) if variant else cells(name)[cell]
    assert varied is not None
    return results().of(digest(varied))


def values(name: str, cell: str, variant: str = "", **run: int) -> list[float]:
    """Return the values of a cell or of its variant, of all runs or of one split or seed."""
    chosen = [row for row in measured(name, cell, variant) if run.items() <= vars(row).items()]
    assert chosen, f"{name} {cell} {variant}: no such rows"
    return [row.value for row in chosen if row.value is not None]


def mean(name: str, cell: str, variant: str = "", **run: int) -> str:
    return f"{statistics.fmean(values(name, cell, variant, **run)):.1f}"


def mean_std(name: str, cell: str) -> str:
    each = values(name, cell)
    return mean(name, cell) + (f" ± {statistics.stdev(each):.1f}" if len(each) > 1 else "")


def printed(name: str, cell: str) -> str:
    value = published(cells(name)[cell])
    assert value is not None
    return f"{value[0] + 1e-9:.1f}"


def own(name: str, cell: str) -> str:
    """Return our mean with its deviation, and the published mean in brackets."""
    return f"{mean_std(name, cell)} ({printed(name, cell)})"


CCVR2, FEDETF1, FEDCLASSAVG2 = "ccvr/table2", "fedetf/table1", "fedclassavg/table2"


@pytest.mark.parametrize("alpha", ["0.5", "0.1", "0.05"])
def test_ccvrs_tables(alpha: str) -> None:
    stages = (own(CCVR2, f"cifar10-{alpha} fedavg {stage}") for stage in ("before", "ccvr", "whole-data"))
    methods = []
    for method in ("fedavg", "fedprox", "fedavgm", "moon"):
        names = [f"cifar10-{alpha} {method} {stage}" for stage in ("before", "ccvr")]
        ours, theirs = (" → ".join(value(CCVR2, cell) for cell in names) for value in (mean, printed))
        methods.append(f"{ours} ({theirs})")
    assert rows(PAGES["ccvr"], f"{alpha} |") == [f"| {alpha} | {' | '.join(each)} |" for each in (stages, methods)]


@pytest.mark.parametrize("method", list(table(FEDETF1).content["axes"]["method"]))
def test_fedetfs_table_1(method: str) -> None:
    names = [
        f"{method} cifar10-{alpha} {accuracy}" for alpha in ("0.1", "0.05") for accuracy in ("general", "personal")
    ]
    texts = [own(FEDETF1, cell) if cell in cells(FEDETF1) else "–" for cell in names]
    assert rows(PAGES["fedetf"], f"`{method}` |") == [f"| `{method}` | {' | '.join(texts)} |"]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("General., α = 0.1", "cifar10-0.1 general"),
        ("Personal., 0.1", "cifar10-0.1 personal"),
        ("General., 0.05", "cifar10-0.05 general"),
        ("Personal., 0.05", "cifar10-0.05 personal"),
    ],
)
def test_fedetfs_gains(row: str, column: str) -> None:
    def gain(split: int, seed: int) -> float:
        (after,), (before,) = (
            values(FEDETF1, f"{method} {column}", split=split, seed=seed) for method in ("fedetf", "fedavg")
        )
        return after - before

    gains = [[gain(split, seed) for seed in (7, 8)] for split in (7, 8, 10)]
    columns = [", ".join(f"{one:.1f}" for one in each) for each in gains]
    columns.append(f"{statistics.fmean(one for each in gains for one in each):.1f}")
    columns.append(f"{float(printed(FEDETF1, f'fedetf {column}')) - float(printed(FEDETF1, f'fedavg {column}')):.1f}")
    assert rows(PAGES["fedetf"], f"{row} |") == [f"| {row} | {' | '.join(columns)} |"]


@pytest.mark.parametrize(
    ("data", "name"), [("cifar10", "CIFAR-10"), ("fashionmnist", "Fashion-MNIST"), ("emnist", "EMNIST letters")]
)
@pytest.mark.parametrize(("partition", "kind"), [("dirichlet", "Dirichlet(0.5)"), ("skewed", "two classes per client")])
def test_fedclassavgs_table_2(data: str, name: str, partition: str, kind: str) -> None:
    texts = []
    for method in ("local", "fedproto", "ktpfl", "fedclassavg"):
        cell = f"{data}-{partition} {method}"
        unmeasured = cell == "cifar10-skewed ktpfl"
        texts.append(f"{'–' if unmeasured else mean(FEDCLASSAVG2, cell, 'validated')} ({printed(FEDCLASSAVG2, cell)})")
    assert rows(PAGES["fedclassavg"], f"{name}, {kind} |") == [f"| {name}, {kind} | {' | '.join(texts)} |"]


def ccvr() -> Iterator[str]:
    before, calibrated = (f"cifar10-0.1 fedavg {stage}" for stage in ("before", "ccvr"))
    splits = [mean(CCVR2, before, split=split) for split in (0, 1, 2)]
    yield f"FedAvg at α = 0.1 has {splits[0]}, {splits[1]} and {splits[2]} on our splits 0, 1 and 2"
    pairs = [(cell, cell.replace("before", "ccvr")) for cell in cells(CCVR2) if cell.endswith("before")]
    runs = [(values(CCVR2, one), values(CCVR2, other)) for one, other in pairs if one.startswith("cifar10-")]
    assert all(after > start for one, other in runs for start, after in zip(one, other, strict=True))
    yield f"each of the {sum(len(one) for one, _ in runs)} runs"
    methods = ("fedavg", "fedprox", "fedavgm", "moon")
    stages = [[f"cifar10-0.1 {method} {stage}" for method in methods] for stage in ("before", "ccvr")]
    means = [[statistics.fmean(values(CCVR2, cell)) for cell in each] for each in stages]
    spread = [f"{max(each) - min(each):.1f}" for each in means]
    yield f"their means differ by {spread[0]} points before calibration and by {spread[1]} after it"
    milder = [mean(CCVR2, cell, "moon-split-0.1") for cell in (before, calibrated)]
    theirs = [printed(CCVR2, cell) for cell in (before, calibrated)]
    yield f"On it FedAvg has {milder[0]} at α = 0.1 (published: {theirs[0]}), and CCVR {milder[1]} ({theirs[1]})"
    few = [mean("ccvr/table3", f"fedavg {count} cifar10-0.1", split=0, seed=0) for count in (50, 1000)]
    start = mean(CCVR2, before, split=0, seed=0)
    yield f"(split 0, seed 0: {start}) 50 virtual features per class reach {few[0]}, 1000 {few[1]}"
    real = [mean("ccvr/table5", f"fedavg {count} cifar10-0.1", split=0, seed=0) for count in (100, 1000)]
    yield f"100 real ones reach {real[0]}, 1000 {real[1]}"
    many = [f"fedavg {clients} before" for clients in (50, 100)]
    ten, every = ([mean("ccvr/table4", cell, variant) for cell in many] for variant in ("", "full-participation"))
    yield f"FedAvg has {ten[0]} with 50 clients and {ten[1]} with 100"
    yield f"(variant `full-participation`) it has {every[0]} and {every[1]}"
    yield "published: " + " and ".join(printed("ccvr/table4", cell) for cell in many)


def fedetf() -> Iterator[str]:
    alphas = ("0.1", "0.05")

    def own(method: str, variant: str = "", accuracy: str = "general", alpha: str = "0.1") -> str:
        return mean(FEDETF1, f"{method} cifar10-{alpha} {accuracy}", variant, split=7, seed=7)

    for method, name in (("fedavg", "FedAvg"), ("fedetf", "FedETF")):
        by_split = [[mean(FEDETF1, f"{method} cifar10-{a} general", split=s) for s in (7, 8, 10)] for a in alphas]
        yield f"{name} has {' and '.join(f'{each[0]}, {each[1]}, {each[2]}' for each in by_split)}"
        table1 = " and ".join(printed(FEDETF1, f"{method} cifar10-{alpha} general") for alpha in alphas)
        table4 = " and ".join(printed("fedetf/table4", f"{method} cifar10-{alpha}") for alpha in alphas)
        yield f"{name} {table4} ({table1})"
        yield f"{name} {own(method, 'public-code')} and {own(method, 'public-code', 'personal')}"
    yield f"falls from {own('fedavg')} to {own('fedavg', 'no-decay')}"
    yield f"FedETF's rises from {own('fedetf')} to {own('fedetf', 'no-decay')}"
    for part in ("no-balance", "no-temperature", "no-projection"):
        both = [mean("fedetf/table4", f"{part} cifar10-{alpha}", split=7, seed=7) for alpha in alphas]
        yield f"`{part}` {both[0]} and {both[1]}"
    yield f"Personal. falls from {own('fedetf', '', 'personal')} to {own('fedetf', 'full-rate-tuning', 'personal')}"
    for method, name in (("fedetf", "FedETF has"), ("fedavg", "FedAvg")):
        both = [f"{method} 1 {accuracy}" for accuracy in ("general", "personal")]
        ours, theirs = (" and ".join(value("fedetf/table5", cell) for cell in both) for value in (mean, printed))
        yield f"{name} {ours} ({theirs})"
    added = [statistics.fmean(values(FEDETF1, f"{method} cifar10-0.1 general")) for method in ("ccvr", "fedavg")]
    yield f"adds {added[0] - added[1]:.1f} points to the mean of FedAvg"


def fedclassavg() -> Iterator[str]:
    kinds = [f"{data}-{kind}" for data in ("cifar10", "fashionmnist", "emnist") for kind in ("dirichlet", "skewed")]
    names = [[f"{kind} {method}" for method in ("local", "fedclassavg")] for kind in kinds]
    ours = [[values(FEDCLASSAVG2, cell, "validated")[0] for cell in pair] for pair in names]
    theirs = [[float(printed(FEDCLASSAVG2, cell)) for cell in pair] for pair in names]
    gains = [sorted(after - local for local, after in each) for each in (ours, theirs)]
    yield f"{gains[0][0]:.1f} to {gains[0][-1]:.1f} points, in print {gains[1][0]:.1f} to {gains[1][-1]:.1f}"
    yield f"FedClassAvg is {ours[0][1] - ours[0][0]:.1f} points above local training"
    parts = [mean("fedclassavg/table4", f"fashionmnist {part}", "validated") for part in ("CA", "CA+PR", "CA+CL")]
    yield f"averaging alone {parts[0]}, with the proximal term {parts[1]}, with the contrastive loss {parts[2]}"
    every = {"fedavg": "FedAvg", "fedprox": "FedProx", "ktpfl": "KT-pFL"}
    fashion = every | {"fedclassavg": "FedClassAvg", "fedclassavg+weight": "all weights"}
    for data, methods in (("fashionmnist", fashion), ("cifar10", every | {"ktpfl+weight": "all weights"})):
        for method, name in methods.items():
            cell = f"{data} 20-clients {method}"
            yield f"{name} {mean('fedclassavg/table3', cell, 'validated')} ({printed('fedclassavg/table3', cell)})"


@pytest.mark.parametrize("sentences", [ccvr, fedetf, fedclassavg])
def test_sentences_have_the_numbers_of_the_results(sentences: Callable[[], Iterator[str]]) -> None:
    text = page(sentences.__name__)
    assert [sentence for sentence in sentences() if sentence not in text] == []
