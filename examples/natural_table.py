"""A table with missing values whose clients are hospitals, as a file and as a data frame.

    python natural_table.py [FILE.npz]

takes a file with the arrays x (NaN where nothing was measured), y and site (docs/data.md), or makes a small one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import fedhead as fh


def make(path: Path) -> Path:
    """Write patients of four hospitals, of which one does not measure cholesterol."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(4), 70)
    x = rng.normal([55, 130, 240], [9, 17, 50], (len(site), 3)).astype(np.float32) + 3 * site[:, None]
    y = (x @ [0.05, 0.03, 0.01] + rng.normal(0, 0.5, len(site)) > 9.3).astype(np.int16)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[site == 2, 2] = np.nan
    columns = ["age", "pressure", "cholesterol"]
    names = {"class_names": ["healthy", "ill"], "site_names": ["north", "east", "south", "west"]}
    np.savez(path, x=x, y=y, site=site, column_names=columns, **names)
    return path


def main() -> None:
    """Train over the hospitals; missing values are filled with means over all of them, and marked."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else make(Path("hospitals.npz"))
    federation = fh.Federation.load(path, test=0.2, missing="mean", normalize="standard")
    settings = {"rounds": 5, "local_epochs": 2, "batch_size": 16, "optimizer": "adam", "lr": 0.01}
    metrics = ["auroc", "f1", "worst_client"]
    run = fh.run(federation, "mlp(hidden=[16])", **settings, stages=[fh.CCVR(samples=200)], metrics=metrics)
    for name, values in (("FedAvg", run.rows[-1]["metrics"]), ("CCVR", run.stage_rows["ccvr"]["metrics"])):
        shown = ", ".join(f"{metric} {100 * values[metric]:.1f} %" for metric in metrics)
        print(f"{name}: {shown}")

    # The same from a data frame, as most tables come.
    arrays = np.load(path)
    frame = pd.DataFrame(arrays["x"]).add_prefix("column ")
    frame = frame.assign(hospital=arrays["site_names"][arrays["site"]], outcome=arrays["class_names"][arrays["y"]])
    same = fh.Federation.from_dataset(frame, "natural(hospital)", label="outcome", test=0.2, missing="mean")
    print(same)


if __name__ == "__main__":
    main()
