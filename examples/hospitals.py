"""Tables of three hospitals for docs/three_hospitals.md: mixed types, gaps, and a mistake in one file."""

from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
for number, hospital in enumerate(("north", "south", "east")):
    rows = (220, 140, 180)[number]
    age, pressure = rng.normal(52 + 4 * number, 10, rows).round(), rng.normal(130, 17, rows).round()
    table = pd.DataFrame(
        {
            "patient": [f"{hospital}-{row:04}" for row in range(rows)],
            "age": age,
            "sex": rng.choice(["f", "m"], rows, p=[0.3, 0.7]),
            "chest_pain": rng.choice(["typical", "atypical", "none"], rows),
            "blood_pressure": pressure,
            "cholesterol": rng.normal(240, 45, rows).round(),
        }
    )
    risk = (age - 55) / 10 + (pressure - 130) / 20 + (table["chest_pain"] == "typical") + rng.normal(0, 0.7, rows)
    table["disease"] = np.where(risk > 0.3, "yes", "no")
    table.loc[rng.random(rows) < 0.15, "cholesterol"] = np.nan
    table.loc[rng.random(rows) < 0.1, "chest_pain"] = np.nan
    if hospital == "south":
        table = table.rename(columns={"disease": "diagnosis"})  # another name of the label
    if hospital == "east":
        table = table.drop(columns="cholesterol")  # not measured there
        table.loc[7, "sex"] = "M"  # a category that the schema does not list
    Path(hospital).mkdir()
    table[: rows // 2].to_csv(f"{hospital}/2024.csv", index=False)
    table[rows // 2 :].to_csv(f"{hospital}/2025.csv", index=False)
    print(f"{hospital}: {rows} patients")
