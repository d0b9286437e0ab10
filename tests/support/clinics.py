"""Tables of three clinics: numbers and words with gaps, as files, and their schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

NAMES = ("north", "south", "east")
SCHEMA = """label: outcome
classes: [alive, dead]
columns:
  age: {unit: years, range: [0, 120]}
  year: {range: [1990, 2030]}
  sex: {type: category, categories: [f, m, x]}
  ward: {type: category}
"""


def clinic(number: int, rows: int = 40) -> pd.DataFrame:
    """Return the table of one clinic; the second has no ward c, and only the third lacks years."""
    rng = np.random.default_rng(number)
    table = pd.DataFrame(
        {
            "patient": [f"{number}-{row}" for row in range(rows)],
            "age": rng.normal(50 + 5 * number, 9, rows).round(1),
            "year": rng.integers(2010 + number, 2025, rows).astype(float),
            "sex": rng.choice(["f", "m"], rows),
            "ward": rng.choice(["a", "b"] if number == 1 else ["a", "b", "c"], rows),
        }
    )
    table["outcome"] = np.where(table["age"] + rng.normal(0, 5, rows) > 55, "dead", "alive")
    table.loc[rng.random(rows) < 0.2, "age"] = np.nan
    table.loc[rng.random(rows) < 0.2, "ward"] = None
    if number == 2:
        table.loc[rng.random(rows) < 0.2, "year"] = np.nan
    return table


def write_clinics(folder: Path) -> dict[str, Path]:
    """Write the schema and the tables, and return the tables' files by clinic."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    files = {name: folder / f"{name}.csv" for name in NAMES}
    for number, path in enumerate(files.values()):
        clinic(number).to_csv(path, index=False)
    return files
