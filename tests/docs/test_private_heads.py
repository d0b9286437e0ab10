"""The tables of private heads hold the measured means, and those of CIFAR-10 meet their goals."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
Cells = dict[tuple[str, str, str], float]  # by head, by who adds the noise, and ε


def measured(name: str, draws: int) -> Cells:
    cells: dict[tuple[str, str, str], list[float]] = {}
    with (ROOT / "benchmarks" / name).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            epsilon = row["epsilon"] if row["epsilon"] == "none" else f"{float(row['epsilon']):g}"
            cells.setdefault((row["head"], row["noise"], epsilon), []).append(float(row["accuracy"]))
    assert {len(values) for values in cells.values()} == {draws}
    return {key: mean(values) for key, values in cells.items()}


@pytest.mark.parametrize(
    ("begin", "end", "name", "draws"),
    [
        ("\nDigits, 1,437", "\nCIFAR-10, 50,000", "dp_heads_digits.csv", 10),
        ("\nCIFAR-10, 50,000", "\n## ", "dp_heads.csv", 3),
    ],
)
def test_the_table_has_the_measured_means(begin: str, end: str, name: str, draws: int) -> None:
    text = (ROOT / "docs" / "private_heads.md").read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    found, expected = Cells(), measured(name, draws)
    for line in text.splitlines():
        if line.startswith("| `"):
            head, noise, *values = (cell.strip() for cell in line.replace("`", "").strip("| ").split("|"))
            found |= {(head, noise, e): float(v) for e, v in zip(("none", "8", "2", "1", "0.5"), values, strict=True)}
    assert expected.keys() <= found.keys()
    assert all(abs(found[key] - value) <= 0.051 for key, value in expected.items())


def test_heads_meet_their_goals() -> None:
    accuracy = measured("dp_heads.csv", 3)
    for epsilon, least in (("8", 89.0), ("2", 87.5), ("1", 86.5)):
        assert accuracy["ridge, center=public", "one site", epsilon] >= least
    for epsilon in ("8", "2", "1", "0.5"):
        assert accuracy["ncm", "one site", epsilon] >= accuracy["ncm", "one site", "none"] - 0.3
        one, many = (accuracy["ridge, center=private", noise, epsilon] for noise in ("one site", "100 sites, shares"))
        assert many >= one - 0.31
