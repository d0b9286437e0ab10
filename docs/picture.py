"""Draw README's picture: accuracy on the digits with and without CCVR, over how unequal the clients are.

    python docs/picture.py                # train, write docs/picture.json and docs/picture.svg
    python docs/picture.py --draw         # only draw docs/picture.svg from docs/picture.json

The settings are those of docs/results.md: 10 clients, 5 rounds of 10 local epochs, the MLP, seeds 0 to 4.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

import fedhead as fh

HERE = Path(__file__).parent
ALPHAS = (0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
SEEDS = range(5)
LINES = {"fedavg": ("FedAvg", "#e08a00", "o"), "ccvr": ("FedAvg + CCVR", "#3b82f6", "s")}


def measure(alpha: float, seed: int) -> dict[str, float]:
    """Train FedAvg on one split of the digits, and calibrate its classifier."""
    federation = fh.Federation.load("digits", f"dirichlet({alpha})", clients=10, seed=seed)
    run = fh.run(
        federation,
        "mlp",
        rounds=5,
        local_epochs=10,
        batch_size=32,
        lr=0.05,
        momentum=0.9,
        weight_decay=1e-5,
        seed=seed,
        executor="stack",
        device="cpu",
    )
    accuracies = {"fedavg": run.accuracy, "ccvr": run.calibrate(fh.CCVR()).accuracy}
    return {name: round(value, 2) for name, value in accuracies.items() if value is not None}


def draw(measured: dict[str, list[dict[str, float]]]) -> Figure:
    """Draw the mean over seeds, with bars of one standard deviation."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for name, (label, color, marker) in LINES.items():
        values = [[row[name] for row in rows] for rows in measured.values()]
        means, deviations = [[f(v) for v in values] for f in (statistics.fmean, statistics.stdev)]
        style = {"color": color, "marker": marker, "markersize": 7, "linewidth": 2.2, "capsize": 4}
        axes.errorbar([float(a) for a in measured], means, deviations, label=label, **style)
    axes.set_xscale("log")
    axes.set_xticks([float(a) for a in measured], list(measured))
    axes.minorticks_off()
    axes.set_xlabel("Dirichlet α of the split (small: clients hold different classes)")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    return figure


def main() -> None:
    """Measure unless told only to draw, then draw."""
    numbers = HERE / "picture.json"
    if "--draw" not in sys.argv:
        measured = {str(alpha): [measure(alpha, seed) for seed in SEEDS] for alpha in ALPHAS}
        numbers.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    settings = {"font.size": 13, "svg.hashsalt": "fedhead", "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(settings):
        figure = draw(json.loads(numbers.read_text(encoding="utf-8")))
        figure.savefig(HERE / "picture.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
