"""Merge the pooled statistics of many clients, as they arrive: seconds and memory of the server, or of a whole run.

    python benchmarks/merging.py [clients] [features] [classes] [--run]

The numbers of docs/one_round.md are those of 1000 clients, 1280 features and 100 classes, the defaults. With `--run`
all clients are simulated beside the server, each with ten samples.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator

import torch
from safetensors.torch import load, save
from torch import nn

import fedhead as fh
from fedhead.calibration import statistics_check
from fedhead.calibration.low_rank import from_tree
from fedhead.calibration.statistics import Statistics, from_features, merge
from fedhead.core.tree.tree import Tree
from fedhead.stages.ridge import Ridge


def messages(features: int, classes: int, different: int = 4) -> list[bytes]:
    """Return the bytes of a few clients' messages."""
    found = []
    for seed in range(different):
        draw = torch.Generator().manual_seed(seed)
        y = torch.arange(2 * classes) % classes
        z = torch.randn(len(y), features, generator=draw) + y[:, None] / classes
        found.append(save(dict(from_features(z, y, classes, "pooled").tree())))
    return found


def measure(clients: int, features: int, classes: int) -> dict[str, float]:
    """Merge one message after another, then solve for a ridge head."""
    sent = messages(features, classes)

    def parts() -> Iterator[Statistics]:
        for k in range(clients):
            yield statistics_check.check(from_tree(Tree(load(sent[k % len(sent)]))), f"client {k}", full=False)

    begin, used = time.perf_counter(), time.process_time()
    merged = statistics_check.check(merge(parts()), "the merged statistics")
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - used
    head = Ridge().fit(merged)
    assert head["weight"].shape == (classes, features)
    return {
        "message_mb": len(sent[0]) / 1e6,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "ridge_seconds": time.perf_counter() - begin - seconds,
        "peak_mb": _peak(),
    }


def measure_run(clients: int, features: int, classes: int, samples: int = 10) -> dict[str, float]:
    """Simulate the clients and the server in one process: a run of ridge regression without rounds."""
    y = torch.arange(clients * samples) % classes
    x = torch.randn(len(y), features, generator=torch.Generator().manual_seed(0)) + y[:, None] / classes
    federation = fh.Federation.from_arrays(x, y, partition="iid", clients=clients)
    del x
    model = fh.split(nn.Sequential(nn.Identity(), nn.Linear(features, classes)), classifier="1")
    before, begin, used = _peak(), time.perf_counter(), time.process_time()
    stage = fh.run(federation, model, rounds=0, stages=["ridge"], device="cpu").stages["ridge"]
    assert stage.metrics["participants"] == clients
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - used,
        "peak_mb_before": before,
        "peak_mb": _peak(),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Print what was measured as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 1000), ("features", 1280), ("classes", 100)):
        parser.add_argument(name, type=int, nargs="?", default=default, help="how many [default: %(default)s]")
    parser.add_argument("--run", action="store_true", help="simulate all clients as well")
    asked = parser.parse_args()
    print(json.dumps((measure_run if asked.run else measure)(asked.clients, asked.features, asked.classes)))


if __name__ == "__main__":
    main()
