"""Accuracy of heads with differential privacy, by ε and by who adds the noise: the tables of docs/private_heads.md.

    python benchmarks/dp_heads.py --data FOLDER --public cifar100 --device cuda --precision bf16 \\
        --out benchmarks/dp_heads.csv
    python benchmarks/dp_heads.py --dataset digits --backbone 'mlp(hidden=[])' --public digits --sites 10 --seeds 10

The first command measures CIFAR-10 on a GPU, the second one the digits on a CPU. The features are computed once, each
cell `--seeds` times. The CSV file is written after every cell; heads of one site come first, since those of many sites
take longest. The printed table has the means.
"""

from __future__ import annotations

import argparse
import csv
import itertools
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
ONE, SHARES, WHOLE = "one site", "{} sites, shares", "{} sites, each all of it"
ROWS = (  # of the table: stage, center of the features, who adds the noise
    ("ridge", "none", ONE),
    ("ridge", "public", ONE),
    ("ridge", "private", ONE),
    ("lda", "none", ONE),
    ("ncm", "none", ONE),
    ("ridge", "private", SHARES),
    ("ridge", "private", WHOLE),
)


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
    return replace(held, indices=[np.sort(part) for part in np.array_split(order, sites)])


def cells(held: fh.Federation, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compute every cell of the table, all seeds of a row before the next row."""
    for (stage, center, noise), seed in itertools.product(ROWS, range(options.seeds)):
        if center == "public" and held.public is None:
            continue
        federation = split(held, 1 if noise == ONE else options.sites, seed)
        for epsilon in [None, *options.epsilons] if noise == ONE else options.epsilons:
            begin = time.perf_counter()
            result = fh.run(
                federation,
                HEAD,
                rounds=0,
                stages=[stage],
                privacy=[] if epsilon is None else [f"dp({epsilon}, {options.delta}, center={center})"],
                uploads=[UnmaskedSecureSum()] if noise == SHARES else [],
                device=options.device,
            )
            yield {
                "head": stage if center == "none" else f"{stage}, center={center}",
                "noise": noise.format(options.sites),
                "epsilon": "none" if epsilon is None else epsilon,
                "seed": seed,
                "accuracy": round(result.stages[stage].accuracy or 0.0, 2),
                "seconds": round(time.perf_counter() - begin, 2),
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
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--out", type=Path, help="CSV file")
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
    print("\n| head | noise by |", " | ".join("no noise" if e == "none" else f"ε = {e:g}" for e in budgets), "|")
    print("|---|---|" + "---|" * len(budgets))
    for (name, noise), by_budget in table.items():
        print(f"| {name} | {noise} |", " | ".join(_cell(by_budget.get(e, [])) for e in budgets), "|")


def _cell(values: list[float]) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}" if values else ""


if __name__ == "__main__":
    main()
