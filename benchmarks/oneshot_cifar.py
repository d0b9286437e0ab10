"""CIFAR-10 and CIFAR-100 in one round: heads in closed form on features of EfficientNet-Lite0, by split of the data.

Run it with `python benchmarks/oneshot_cifar.py --data FOLDER --out FOLDER`: the features of both data sets in one pass,
all heads, and FedAvg with CCVR on the same features. `--limit 500 --resize 112 --precision fp32` tries it on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import fedhead as fh
from fedhead.calibration.statistics import from_features, merge
from fedhead.core.tree.tree import Weights
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.executors.select import device as select_device

HEAD = "mlp(hidden=[])"  # a linear layer on the features
FIELDS = ("dataset", "normalize", "alpha", "head", "accuracy", "bytes_per_client", "seconds")
Row = dict[str, Any]


def features(dataset: str, options: argparse.Namespace) -> tuple[fh.Federation, float]:
    """Return the features of a data set, and the seconds that they took."""
    federation = fh.Federation.load(
        dataset,
        "iid",
        options.clients,
        data_dir=options.data,
        augment="none",
        normalize=options.normalize,
        resize=options.resize,
        subset=options.limit,
    )
    begin = time.perf_counter()
    found = fh.extract_features(
        federation, "efficientnet_lite0", device=options.device, precision=options.precision, cache=options.cache
    )
    return found, time.perf_counter() - begin


def split(held: fh.Federation, alpha: str, clients: int, seed: int) -> fh.Federation:
    """Return the same features with other clients."""
    rule = parse_partition("iid" if alpha == "iid" else f"dirichlet({alpha})")
    rows = rule.split(held.train.y.numpy(), held.classes, clients, seed)
    return dataclasses.replace(held, indices=rows, partition=str(rule))


def heads(held: fh.Federation, device: str) -> Iterator[Row]:
    """Compute every head from one message per client; qda of many classes one client after another."""
    full = 8 * held.classes * held.input_shape[0] ** 2 // 2 * len(held)  # bytes of all messages of qda
    stages = ["ncm", "ridge", "lda", "fedcof", *(["qda"] if full < 10e9 else [])]
    absent: Any = "refuse" if held.counts().sum(0).all() else "never"
    made = [fh.STAGES[name](absent=absent) for name in stages]
    result = fh.run(held, HEAD, rounds=0, stages=made, device=device)
    for name, stage in result.stages.items():
        sent = stage.metrics["bytes_up"] / sum(size > 0 for size in held.sizes)
        yield {
            "head": name,
            "accuracy": stage.accuracy,
            "bytes_per_client": sent,
            "seconds": stage.metrics.get("seconds"),
        }
    if "qda" not in stages:
        yield streamed_qda(held, absent, device)


def streamed_qda(held: fh.Federation, absent: Any, device: str) -> Row:
    """Compute qda from full statistics that are added up as they come, so that one client's are held at a time."""
    begin, where, stage = time.perf_counter(), select_device(device), fh.QDA(absent=absent)
    assert isinstance(held.train.x, torch.Tensor)
    assert held.test is not None
    z, y = held.train.x.to(where), held.train.y.to(where)
    rows = [torch.from_numpy(own).to(where) for own in held.indices if len(own)]
    total = merge(from_features(z[own], y[own], held.classes, "full") for own in rows)
    head = Weights({f"classifier.{name}": t.to(z.dtype) for name, t in stage.fit(total).items()})
    parts = torch.split(held.test.x, 256)  # type: ignore[arg-type]  # one tensor
    found = torch.cat([stage.logits(head, part.to(where)).argmax(1).cpu() for part in parts])
    accuracy = 100 * float((found == held.test.y).double().mean())
    return {
        "head": "qda",
        "accuracy": accuracy,
        "bytes_per_client": total.tree().nbytes,
        "seconds": time.perf_counter() - begin,
    }


def fedavg(held: fh.Federation, rounds: int, device: str) -> Iterator[Row]:
    """Train the head by FedAvg on the same features, with CCVR after the rounds."""
    few = held.classes <= 10
    ccvr = fh.CCVR(samples=2000 if few else 200, covariance="full" if few else "diagonal")
    begin = time.perf_counter()
    result = fh.run(
        held, HEAD, rounds=rounds, lr=0.1, batch_size=64, stages=[ccvr], evaluate_every=rounds, device=device
    )
    seconds, there = time.perf_counter() - begin, sum(size > 0 for size in held.sizes)
    calibrated = result.stages["ccvr"]
    sent = sum(row["bytes_up"] for row in result.rows) / there
    yield {"head": f"fedavg({rounds})", "accuracy": result.accuracy, "bytes_per_client": sent, "seconds": seconds}
    more = sent + calibrated.metrics["bytes_up"] / there
    yield {
        "head": f"fedavg({rounds})+ccvr",
        "accuracy": calibrated.accuracy,
        "bytes_per_client": more,
        "seconds": seconds,
    }


def main() -> None:
    """Write one row per data set, split and head, each as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of the data sets, as for fedhead run --data-dir")
    parser.add_argument("--out", type=Path, required=True, help="folder for oneshot_cifar.csv")
    parser.add_argument("--datasets", nargs="+", default=["cifar10", "cifar100"])
    parser.add_argument("--alphas", nargs="+", default=["0.05", "0.1", "0.5", "iid"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--resize", type=int, default=224)
    parser.add_argument("--normalize", default="half", help="half is what the extractor was pretrained with")
    parser.add_argument("--rounds", type=int, default=50, help="of FedAvg; 0: leave it out")
    parser.add_argument("--limit", type=int, help="training samples; all by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16", help="of the extractor")
    parser.add_argument("--cache", help="folder where features are kept")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "oneshot_cifar.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()

        def write(row: Row) -> None:
            writer.writerow(row)
            file.flush()
            print(*(f"{v:.2f}" if isinstance(v, float) else v for v in row.values()), flush=True)

        for dataset in options.datasets:
            held, seconds = features(dataset, options)
            write({"dataset": dataset, "normalize": options.normalize, "head": "features", "seconds": seconds})
            for alpha in options.alphas:
                own = split(held, alpha, options.clients, options.seed)
                found = [heads(own, options.device)]
                found += [fedavg(own, options.rounds, options.device)] if options.rounds else []
                for row in (row for rows in found for row in rows):
                    write({"dataset": dataset, "normalize": options.normalize, "alpha": alpha, **row})


if __name__ == "__main__":
    main()
