"""Accuracy of heads with differential privacy, by ε and by who adds the noise.

Run it with `python benchmarks/dp_heads.py --data FOLDER --public cifar100 --device cuda --precision bf16 --out FILE`.
The features of CIFAR-10 are computed once, each head `--seeds` times. `--dataset digits --backbone 'mlp(hidden=[])'
--public digits --sites 10` tries it on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar

import numpy as np

import fedhead as fh
from fedhead.calibration.private_statistics import PENALTY

HEAD = "mlp(hidden=[])"  # a linear layer on the features
HEADS = {  # stage and center of the features
    "ridge": ("ridge", "none"),
    "ridge, public mean": ("ridge", "public"),
    "ridge, private mean": ("ridge", "private"),
    "lda": ("lda", "none"),
    "class means": ("ncm", "none"),
}
ONE, WHOLE, SHARES = "one site", "{} sites, each all the noise", "{} sites, shares of the noise"


@dataclass(frozen=True)
class UnmaskedSecureSum(fh.Upload):
    """Stand-in for `secure_sum`, without its masks: the server uses the total alone, so each client adds a share."""

    spares_sums: ClassVar[bool] = True

    def min_clients(self, clients: int) -> int:
        return clients


def features(options: argparse.Namespace) -> fh.Federation:
    """Return the features of all samples, computed once."""
    given = {} if options.public is None else {"public": options.public}
    federation = fh.Federation.load(options.dataset, "iid", 2, data_dir=options.data, augment="none", **given)
    found = fh.oneshot(
        federation,
        options.backbone,
        ["ncm"],
        resize=options.resize,
        device=options.device,
        precision=options.precision,
        cache=options.cache,
    )
    print(f"features: {found.feature_seconds:.0f} s", flush=True)
    return replace(found.features, client_test=None)


def split(held: fh.Federation, sites: int, seed: int) -> fh.Federation:
    """Return the same features, distributed over sites at random."""
    order = np.random.default_rng(seed).permutation(len(held.train.y))
    return replace(held, rows=[np.sort(part) for part in np.array_split(order, sites)])


def cells(held: fh.Federation, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compute every head of the table."""
    names = {name: head for name, head in HEADS.items() if held.public is not None or head[1] != "public"}
    for seed in range(options.seeds):
        for name, (stage, center) in names.items():
            for noise, sites, uploads, budgets in (
                (ONE, 1, [], [None, *options.epsilons]),
                (WHOLE, options.sites, [], options.epsilons if options.all else [1.0]),
                (SHARES, options.sites, [UnmaskedSecureSum()], options.epsilons if options.all else [1.0]),
            ):
                federation = split(held, sites, seed)
                for epsilon in budgets:
                    privacy = [] if epsilon is None else [fh.DP(epsilon, options.delta, center=center)]
                    begin = time.perf_counter()
                    result = fh.run(
                        federation,
                        HEAD,
                        rounds=0,
                        stages=[stage],
                        privacy=privacy,
                        uploads=uploads,
                        device=options.device,
                    )
                    yield {
                        "head": name,
                        "noise": noise.format(sites),
                        "epsilon": "none" if epsilon is None else epsilon,
                        "seed": seed,
                        "accuracy": result.stages[stage].accuracy,
                        "seconds": time.perf_counter() - begin,
                        "penalty": PENALTY,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--public", help="data set of public samples, for the public mean")
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--resize", type=int, help="side of images; default: as in the pretraining")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 2.0, 1.0, 0.5])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="all budgets for many sites too, not ε = 1 alone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--out", type=Path, help="CSV file, written as the cells are computed")
    options = parser.parse_args()
    held, rows = features(options), []
    for row in cells(held, options):
        rows.append(row)
        print(*row.values(), flush=True)
        if options.out is not None:
            with options.out.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
                writer.writerows(rows)
    table: dict[tuple[str, str], dict[Any, list[float]]] = {}
    for row in rows:
        table.setdefault((row["head"], row["noise"]), {}).setdefault(row["epsilon"], []).append(row["accuracy"])
    budgets = ["none", *options.epsilons]
    print("\n| head | noise |", " | ".join(f"ε = {e}" for e in budgets), "|")
    print("|---|---|" + "---|" * len(budgets))
    for (name, noise), by_budget in table.items():
        print(f"| {name} | {noise} |", " | ".join(_cell(by_budget.get(e, [])) for e in budgets), "|")


def _cell(values: list[float]) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}" if values else ""


if __name__ == "__main__":
    main()
