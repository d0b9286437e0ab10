"""The papers' pages: their tables have the numbers of results/results.csv."""

from __future__ import annotations

import re
import statistics
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
    name, title, total, measured, _, within_points, _ = counted.strip("| ").split(" | ")
    assert shown.startswith(f"| {' | '.join([name, title, total, measured, within_points])} |")


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_shown_with_their_numbers(name: str) -> None:
    text, folder = page(name), ROOT / "results" / "figures" / name
    shown = set(re.findall(rf"results/figures/{name}/([\w-]+)\.svg", text))
    assert shown == {path.stem for path in folder.glob("*.svg")}
    assert {path.stem for path in folder.glob("*.csv")} == {figure.partition("-")[0] for figure in shown}


def indented(name: str) -> list[str]:
    """Return the rows of the tables inside a page's lists."""
    return [line.strip() for line in PAGES[name].read_text(encoding="utf-8").splitlines() if line[:3] == "  |"]


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


def or_not_run(name: str, cell: str, variant: str = "") -> str:
    """Return our mean, or "not run", and the published value in brackets; a variant may not concern the cell."""
    if variant and table(name).as_in(cells(name)[cell], variant) is None:
        variant = ""
    ours = mean(name, cell, variant) if measured(name, cell, variant) else "not run"
    return f"{ours} ({printed(name, cell)})"


def own(name: str, cell: str) -> str:
    """Return our mean with its deviation, and the published mean in brackets."""
    return f"{mean_std(name, cell)} ({printed(name, cell)})"


def with_deviation(value: float, deviation: float | None) -> str:
    return f"{value:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def printed_with_deviation(name: str, cell: str) -> str:
    value = published(cells(name)[cell])
    assert value is not None
    return with_deviation(value[0] + 1e-9, None if value[1] is None else value[1] + 1e-9)


CCVR2, FEDETF1, FEDCLASSAVG2 = "ccvr/table2", "fedetf/table1", "fedclassavg/table2"


@pytest.mark.parametrize("tukey", ["real", "none", "both", "virtual"])
def test_the_tukey_table_of_ccvrs_guide(tukey: str) -> None:
    variant = "" if tukey == "real" else f"tukey-{tukey}"
    ours = [values(CCVR2, f"cifar10-{alpha} fedavg ccvr", variant, split=0, seed=0) for alpha in ("0.5", "0.1")]
    shown = " | ".join(f"{value:.2f}" for (value,) in ours)
    (row,) = rows(ROOT / "docs" / "ccvr.md", f"{'CCVR, ' if tukey == 'real' else ''}`tukey={tukey}` |")
    assert row.endswith(f"` | {shown} |")


@pytest.mark.parametrize("alpha", ["0.5", "0.1", "0.05"])
def test_ccvrs_tables(alpha: str) -> None:
    stages = (own(CCVR2, f"cifar10-{alpha} fedavg {stage}") for stage in ("before", "ccvr", "whole-data"))
    methods = []
    for method in ("fedavg", "fedprox", "fedavgm", "moon"):
        names = [f"cifar10-{alpha} {method} {stage}" for stage in ("before", "ccvr")]
        ours, theirs = (" → ".join(value(CCVR2, cell) for cell in names) for value in (mean, printed))
        methods.append(f"{ours} ({theirs})")
    assert rows(PAGES["ccvr"], f"{alpha} |") == [f"| {alpha} | {' | '.join(each)} |" for each in (stages, methods)]


def of_two_runs(cell: str) -> str:
    """Return the mean of the runs whose split has the number of their seed, and the published value in brackets."""
    ours = [row.value for row in measured(FEDETF1, cell, "") if row.split == row.seed and row.value is not None]
    return f"{statistics.fmean(ours):.1f} ({printed_with_deviation(FEDETF1, cell)})"


def test_means_of_fedetfs_six_runs() -> None:
    columns = [f"cifar10-{alpha} {accuracy}" for alpha in ("0.1", "0.05") for accuracy in ("general", "personal")]
    fedavg, fedetf = (
        [mean_std(FEDETF1, f"{method} {column}") for column in columns] for method in ("fedavg", "fedetf")
    )
    means = " and ".join([", ".join(fedavg[:3]), fedavg[3]]), " and ".join([", ".join(fedetf[:3]), fedetf[3]])
    assert f"FedAvg {means[0]}; FedETF {means[1]}" in page("fedetf")


@pytest.mark.parametrize("method", list(table(FEDETF1).content["axes"]["method"]))
def test_fedetfs_table_1(method: str) -> None:
    names = [
        f"{method} cifar10-{alpha} {accuracy}" for alpha in ("0.1", "0.05") for accuracy in ("general", "personal")
    ]
    texts = [of_two_runs(cell) if cell in cells(FEDETF1) else "–" for cell in names]
    assert rows(PAGES["fedetf"], f"`{method}` |") == [f"| `{method}` | {' | '.join(texts)} |"]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("general, α = 0.1", "cifar10-0.1 general"),
        ("personal, α = 0.1", "cifar10-0.1 personal"),
        ("general, α = 0.05", "cifar10-0.05 general"),
        ("personal, α = 0.05", "cifar10-0.05 personal"),
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


@pytest.mark.parametrize("method", ["fedavg", "ccvr", "fedrod", "fednh", "fedetf"])
def test_fedetfs_tables_2_and_5(method: str) -> None:
    def means(name: str, settings: list[str], accuracy: str) -> str:
        names = [f"{method} {setting} {accuracy}" for setting in settings]
        theirs = [published(cells(name)[cell]) for cell in names]
        ours = statistics.fmean(statistics.fmean(values(name, cell)) for cell in names)
        return f"{ours:.1f} ({statistics.fmean(value[0] for value in theirs if value) + 1e-9:.1f})"

    kinds = ("general", "personal")
    clients = [means("fedetf/table2", ["50-0.4", "50-0.6", "100-0.4", "100-0.6"], kind) for kind in kinds]
    epochs = [means("fedetf/table5", [number], kind) for number in ("1", "2", "4") for kind in kinds]
    assert f"| `{method}` | {' | '.join(clients)} |" in indented("fedetf")
    assert f"| `{method}` | {' | '.join(epochs)} |" in indented("fedetf")


@pytest.mark.parametrize("method", list(table(FEDETF1).content["axes"]["method"]))
def test_fedetfs_table_1_on_cifar100(method: str) -> None:
    names = [
        f"{method} cifar100-{alpha} {accuracy}" for alpha in ("0.1", "0.05") for accuracy in ("general", "personal")
    ]
    texts = [or_not_run(FEDETF1, cell) if cell in cells(FEDETF1) else "–" for cell in names]
    assert f"| `{method}` | {' | '.join(texts)} |" in indented("fedetf")


@pytest.mark.parametrize(
    ("data", "name"), [("cifar10", "CIFAR-10"), ("fashionmnist", "Fashion-MNIST"), ("emnist", "EMNIST letters")]
)
@pytest.mark.parametrize(("partition", "kind"), [("dirichlet", "Dirichlet(0.5)"), ("skewed", "two classes per client")])
def test_fedclassavgs_table_2(data: str, name: str, partition: str, kind: str) -> None:
    texts = []
    for method in ("local", "fedproto", "ktpfl", "fedclassavg"):
        cell = f"{data}-{partition} {method}"
        (run,) = measured(FEDCLASSAVG2, cell, "validated")
        assert run.value is not None
        theirs = printed_with_deviation(FEDCLASSAVG2, cell)
        texts.append(f"{with_deviation(run.value, run.client_deviation)} ({theirs})")
    assert rows(PAGES["fedclassavg"], f"{name}, {kind} |") == [f"| {name}, {kind} | {' | '.join(texts)} |"]


@pytest.mark.parametrize(
    ("data", "name"), [("cifar10", "CIFAR-10"), ("fashionmnist", "Fashion-MNIST"), ("emnist", "EMNIST letters")]
)
@pytest.mark.parametrize(("clients", "variant"), [(20, "validated"), (100, "caption-cnn-union")])
def test_fedclassavgs_table_3(data: str, name: str, clients: int, variant: str) -> None:
    methods = ("fedavg", "fedprox", "ktpfl", "ktpfl+weight", "fedclassavg", "fedclassavg+weight")
    texts = [or_not_run("fedclassavg/table3", f"{data} {clients}-clients {method}", variant) for method in methods]
    assert f"| {name}, {clients} | {' | '.join(texts)} |" in indented("fedclassavg")


def test_claims_about_fedclassavg() -> None:
    kinds = [f"{data}-{kind}" for data in ("cifar10", "fashionmnist", "emnist") for kind in ("dirichlet", "skewed")]
    for kind in kinds:  # "FedClassAvg is the best of the four in every row"
        others = [values(FEDCLASSAVG2, f"{kind} {method}", "validated") for method in ("local", "fedproto", "ktpfl")]
        assert values(FEDCLASSAVG2, f"{kind} fedclassavg", "validated") > max(others)


def test_claims_about_ccvr() -> None:
    for cell in cells(CCVR2):  # "calibration raises the accuracy in each of the runs"
        if cell.startswith("cifar10-") and cell.endswith("before"):
            pairs = zip(values(CCVR2, cell), values(CCVR2, cell.replace("before", "ccvr")), strict=True)
            assert all(after > before for before, after in pairs)
