"""The table of private heads holds the means of benchmarks/dp_heads.csv, which meet their goals."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]
Cells = dict[tuple[str, str, str], float]  # by head, by who adds the noise, and ε


def measured() -> Cells:
    cells: dict[tuple[str, str, str], list[float]] = {}
    with (ROOT / "benchmarks" / "dp_heads.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            epsilon = row["epsilon"] if row["epsilon"] == "none" else f"{float(row['epsilon']):g}"
            cells.setdefault((row["head"], row["noise"], epsilon), []).append(float(row["accuracy"]))
    assert {len(values) for values in cells.values()} == {3}
    return {key: mean(values) for key, values in cells.items()}


def test_the_table_has_the_measured_means() -> None:
    text = (ROOT / "docs" / "private_heads.md").read_text(encoding="utf-8").partition("\nCIFAR-10, 50,000")[2]
    found, expected = Cells(), measured()
    for line in text.splitlines():
        if line.startswith("| `"):
            head, noise, *values = (cell.strip() for cell in line.replace("`", "").strip("| ").split("|"))
            found |= {(head, noise, e): float(v) for e, v in zip(("none", "8", "2", "1", "0.5"), values, strict=True)}
    assert expected.keys() <= found.keys()
    assert all(abs(found[key] - value) <= 0.051 for key, value in expected.items())


def test_heads_meet_their_goals() -> None:
    accuracy = measured()
    for epsilon, least in (("8", 89.0), ("2", 87.5), ("1", 86.5)):
        assert accuracy["ridge, center=public", "one site", epsilon] >= least
    for epsilon in ("8", "2", "1", "0.5"):
        assert accuracy["ncm", "one site", epsilon] >= accuracy["ncm", "one site", "none"] - 0.3
        one, many = (accuracy["ridge, center=private", noise, epsilon] for noise in ("one site", "100 sites, shares"))
        assert many >= one - 0.31
