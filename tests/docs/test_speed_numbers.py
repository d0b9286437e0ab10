"""The speeds that pages name are those that were recorded."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "benchmarks/h200.json").read_text(encoding="utf-8"))
TARGETS = list(csv.DictReader((ROOT / "benchmarks/targets.csv").read_text(encoding="utf-8").splitlines()))


def table(page: str, first_cell: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with a cell, without their bold face."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("**", "")
    found = text[text.index(f"| {first_cell} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in found.splitlines()[2:]]


def test_the_first_table_is_that_of_the_raw_rows() -> None:
    raw = {
        (row["workload"], row["executor"], row["precision"]): row
        for row in RECORDED
        if row["clients"] == 20 and row["executor"] != "loop"
    }
    rows = table("benchmarks/h200.md", "workload, 20 clients")
    assert len(rows) == len(raw)
    for workload, executor, precision, steps, ratio, _, floor, peak in rows:
        row = raw[workload, executor, precision]
        assert steps == f"{row['steps_per_s']:,.0f}"
        assert float(ratio.partition("x")[0]) == round(row["ratio"], 1 if row["ratio"] < 10 else None)
        assert floor == f"{100 * row['floor_share']:.0f} %"
        assert peak == f"{row['peak_gib']:.1f}"


def test_other_numbers_of_clients_are_those_of_the_raw_rows() -> None:
    raw = {(row["workload"], row["precision"], row["clients"]): row for row in RECORDED if row["executor"] == "stack"}
    for name, *cells in table("benchmarks/h200.md", "stack, steps/s"):
        workload, _, precision = name.rpartition(", ")
        for clients, cell in zip((10, 20, 40), cells, strict=True):
            row = raw[workload, precision, clients]
            assert cell == f"{row['steps_per_s']:,.0f} ({row['ratio']:.0f}x)"


def test_the_guide_has_recorded_speeds() -> None:
    recorded = {f"{row['steps_per_s']:,.0f}" for row in RECORDED}
    recorded |= {f"{float(row['value']):,.0f}" for row in TARGETS}
    rows = table("docs/speed.md", "workload")
    assert [steps for _, _, _, steps, _, _ in rows if steps not in recorded] == []
    for _, _, _, steps, ratio, loop in rows:
        assert round(int(steps.replace(",", "")) / int(loop)) == int(ratio)


def test_the_summary_has_the_values_of_the_sections_below() -> None:
    text = (ROOT / "benchmarks/h200.md").read_text(encoding="utf-8")
    _, summary, below = re.split(r"^## (?:Summary|Steps per second)$", text, flags=re.MULTILINE)
    numbers = re.findall(r"\d[\d,.]*\d|\d", summary)
    assert len(numbers) > 20
    known = set(re.findall(r"\d[\d,.]*\d|\d", below))
    assert [number for number in numbers if number not in known] == []
