"""README's numbers are those of the files that it takes them from."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.published import published
from fedhead.papers.tables.results import Results

ROOT = Path(__file__).parents[2]
# README's rows on CIFAR-10: the table, what a changed setting has in it, and the cells without and with the method
CIFAR10 = {
    "CCVR": ("ccvr/table2", "", ["cifar10-0.1 fedavg before", "cifar10-0.1 fedavg ccvr"]),
    "FedETF": ("fedetf/table1", "", ["fedavg cifar10-0.1 general", "fedetf cifar10-0.1 general"]),
    "FedClassAvg": (
        "fedclassavg/table2",
        "rounds=150",
        ["cifar10-dirichlet local", "cifar10-dirichlet fedclassavg"],
    ),
}


def test_the_count_of_measured_values_is_that_of_the_results() -> None:
    counts = []
    for page in (ROOT / "README.md", ROOT / "results" / "README.md"):
        counts.append(re.findall(r"(\d+)\s+of\s+the\s+papers'\s+(\d+)", page.read_text(encoding="utf-8")))
    assert len(counts[1]) == 1
    assert counts[0] == counts[1]


@pytest.mark.parametrize("method", CIFAR10)
def test_the_rows_on_cifar10_are_those_of_the_results(method: str) -> None:
    table, changed, cells = CIFAR10[method]
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md")]
    row = next(line for line in pages[0].splitlines() if line.startswith(f"| **{method}**"))
    *shown, printed = row.replace("*", "").split("|")[2:5]
    (conditions,) = (line for line in pages[1].splitlines() if line.startswith(f"| {method} a"))
    (drawn,) = re.findall(r"(\d+ splits × \d+ seeds|1 seed)", conditions)
    for name, text in zip(cells, shown, strict=True):
        found = [row for row in Results(ROOT / "results") if (row.table, row.cell, row.scale) == (table, name, "full")]
        found = [row for row in found if (changed in row.overrides if changed else not row.overrides)]
        values = [row.value for row in found if row.value is not None]
        deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        assert text.strip() == f"{statistics.fmean(values):.1f}{deviation}"
        splits, seeds = len({row.split for row in found}), len({row.seed for row in found})
        assert drawn == (f"{splits} splits × {seeds} seeds" if len(found) > 1 else "1 seed")
        assert len(found) == splits * seeds
    own = {cell.name: published(cell) for cell in tables.load(table).cells(pick=cells)}
    for name, text in zip(cells, printed.split("→"), strict=True):
        value = own[name]
        assert value is not None
        assert value[0] == pytest.approx(float(text), abs=0.0501)  # 58.55 is rounded either way


def mean(table: str, cell: str) -> str:
    """Return what a table's own settings have in a cell, as pages write it."""
    rows = [row for row in Results(ROOT / "results") if (row.table, row.cell, row.overrides) == (table, cell, "")]
    return f"{statistics.fmean(row.value for row in rows if row.value is not None and row.scale == 'full'):.1f}"


def test_the_page_about_choosing_has_the_same_values() -> None:
    gain = " → ".join(mean("fedetf/table1", f"{method} cifar10-0.1 general") for method in ("fedavg", "fedetf"))
    assert gain in (ROOT / "docs/choosing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["docs/papers/ccvr.md", "docs/results.md", "docs/choosing.md"])
def test_the_rows_of_ccvr_say_which_transformation_they_have(page: str) -> None:
    (cell,) = tables.load("ccvr/table2").cells(pick=["cifar10-0.1 fedavg ccvr"])
    assert f"tukey={cell.parameters['tukey']}" in (ROOT / page).read_text(encoding="utf-8")
