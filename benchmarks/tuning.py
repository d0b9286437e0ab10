"""Trials of a search one after another against the same trials side by side in one stack, in one run.

    python benchmarks/tuning.py [--model mlp] [--device cpu] [--trials 16] [--rounds 3] [--csv benchmarks/tuning.csv]
    python benchmarks/tuning.py --model simplecnn --device cuda --trials 64

Every trial trains the same federation (random images by Dirichlet(0.1), 8x8 for the MLP and 32x32 for others) with its
own learning rate, momentum and weight decay (with --method fedprox: and μ), and tests its model after every round. Both
ways take turns and the best of several times counts, so that other load on the machine hits both; on a CPU with one
thread it is the processor's own time. The last line gives the trials per minute of both, their ratio, and how far the
weights of the trials are apart at most.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import fedhead as fh
from fedhead.engine.rounds.rounds import FinishedRun
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.recipes.experiment import BuiltModels, Experiment
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import Inputs

SAMPLES = {"mlp": 1440}  # others: 10,000


def federation(model: str, clients: int) -> fh.Federation:
    """Random images of ten classes, with a test set a quarter as large."""
    rng = np.random.RandomState(0)
    shape = (1, 8, 8) if model == "mlp" else (3, 32, 32)
    count = SAMPLES.get(model, 10_000)
    x = rng.randint(0, 256, (count * 5 // 4, *shape)).astype(np.uint8)
    y = rng.randint(0, 10, len(x))
    test = (x[count:], y[count:])
    return fh.Federation.dirichlet(x[:count], y[:count], clients=clients, alpha=0.1, test=test, classes=10, seed=0)


def experiments(fed: fh.Federation, asked: argparse.Namespace) -> list[Experiment]:
    """One experiment per trial, which differ in their hyperparameters alone and share the models they begin with."""
    rng = np.random.RandomState(1)
    made, built = [], BuiltModels()
    for _ in range(asked.trials):
        recipe = Recipe(
            model=asked.model,
            clients=asked.clients,
            rounds=asked.rounds,
            local_epochs=asked.epochs,
            batch_size=asked.batch,
            lr=float(10 ** rng.uniform(-3, -1)),
            momentum=float(rng.uniform(0.5, 0.95)),
            weight_decay=float(10 ** rng.uniform(-5, -3)),
            method=asked.method,
            method_parameters={"mu": float(10 ** rng.uniform(-4, 0))} if asked.method == "fedprox" else {},
        )
        made.append(Experiment.from_recipe(recipe, Inputs.of(fed), built))
    return made


def measure(work: Callable[[], list[FinishedRun]], device: str) -> tuple[float, list[FinishedRun]]:
    """Return what some trials took, in seconds, and the trials."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begin, found


def main() -> None:
    """Print the trials per minute of both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--method", default="fedavg", help="fedavg, or fedprox with its own μ per trial")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--alone", type=int, default=4, help="how many of them are also run one after another")
    parser.add_argument("--repeats", type=int, default=3, help="how often both ways take turns; the best counts")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--stack", type=int, help="most clients of a stack; default: as many as fit")
    parser.add_argument(
        "--slots", type=int, help="clients that train at a time on a GPU; default: chosen by their steps"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path, help="append the result to this table")
    asked = parser.parse_args()
    if asked.csv and (asked.stack or asked.slots):
        parser.error("the table has no columns for --stack and --slots: leave --csv out")
    fh.tune_malloc()
    fed = federation(asked.model, asked.clients)
    trials = experiments(fed, asked)

    def trial(experiment: Experiment, executor: str | Executor) -> FinishedRun:
        return experiment.simulate(fed, executor=executor, device=asked.device, precision=asked.precision)

    def side_by_side() -> list[FinishedRun]:
        simulation = trials[0].simulation(fed, torch.device(asked.device), asked.precision == "bf16")
        compiled = asked.device == "cuda" and select.pays_to_compile(simulation, len(trials))
        worker = Stack(asked.stack, Graphs(compile=compiled, slots=asked.slots))
        return run_together(
            worker, [lambda member, one=one: trial(one, member) for one in trials], mix_hyperparameters=True
        )

    trial(trials[0], "auto")  # libraries load in the first one
    alone_seconds, seconds = [], []
    for _ in range(asked.repeats):
        taken, alone = measure(lambda: [trial(one, "auto") for one in trials[: asked.alone]], asked.device)
        alone_seconds.append(taken)
        taken, joined = measure(side_by_side, asked.device)
        seconds.append(taken)
    apart = max(
        float((a - b).abs().max())
        for one, other in zip(alone, joined, strict=False)
        for a, b in zip(one.server.leaves().values(), other.server.leaves().values(), strict=True)
    )
    rates = 60 * len(alone) / min(alone_seconds), 60 * len(joined) / min(seconds)
    found = {
        **{name: value for name, value in vars(asked).items() if name not in ("json", "csv", "stack", "slots")},
        "executor": alone[0].executor,
        "one_after_another_per_minute": round(rates[0], 2),
        "side_by_side_per_minute": round(rates[1], 2),
        "ratio": round(rates[1] / rates[0], 2),
        "weights_apart": apart,
        "device_name": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    print(json.dumps(found))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.csv is not None:
        new = not asked.csv.exists()
        with asked.csv.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(found), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(found)


if __name__ == "__main__":
    main()
