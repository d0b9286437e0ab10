"""Accuracy and speed of DP-SGD beside Opacus, and accuracy of DP-FedAvg beside plain FedAvg, on digits and a CPU.

Run it with `python benchmarks/dp_rounds.py --seeds 5`. It needs the extra `privacy` and, for its rows, `opacus`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import mean, stdev

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedhead as fh
from fedhead.data.pool import Pool

MODEL = "mlp(hidden=[64])"
CLIP, BATCH, LR, DELTA = 1.0, 64, 0.5, 1e-4
Outcome = tuple[float, float, float]  # accuracy in per cent, steps per second, ε


def fedhead_dp_sgd(federation: fh.Federation, epochs: int, multiplier: float | None, seed: int) -> Outcome:
    """Train one client, one epoch per round; multiplier None: without privacy."""
    privacy = [] if multiplier is None else [fh.SampleDP(1e3, DELTA, clip=CLIP, noise_multiplier=multiplier)]
    run = fh.run(
        federation,
        MODEL,
        rounds=epochs,
        batch_size=BATCH,
        lr=LR,
        seed=seed,
        evaluate_every=epochs,
        executor="loop",
        privacy=privacy,
    )
    steps = epochs * -(-len(federation.indices[0]) // BATCH)
    epsilon = run.guarantees[0].epsilon if privacy else float("inf")
    return run.accuracy or 0.0, steps / run.seconds, epsilon


def opacus_dp_sgd(federation: fh.Federation, epochs: int, multiplier: float, seed: int) -> Outcome:
    """Train the same model on the same inputs with Opacus."""
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    pools = [Pool(part, federation.transform, "cpu", torch.float32) for part in (federation.train, federation.test)]
    rows = [torch.as_tensor(federation.indices[0]), torch.arange(len(federation.test.y))]
    (x, y), (test_x, test_y) = (
        (pool.view(index, None).flatten(1), pool.y[index]) for pool, index in zip(pools, rows, strict=True)
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    initial = fh.build("mlp", federation.input_shape, 10, seed=seed, hidden=[64])
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), initial.parameters(), strict=True):
            parameter.copy_(value)
    engine, optimizer = PrivacyEngine(accountant="rdp"), torch.optim.SGD(model.parameters(), lr=LR)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=multiplier, max_grad_norm=CLIP
    )
    steps, begin = 0, time.perf_counter()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            steps += 1
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(1) == test_y).double().mean()) * 100
    return accuracy, steps / seconds, engine.get_epsilon(DELTA)


def dp_fedavg(
    federation: fh.Federation, rounds: int, epsilon: float | None, seed: int, quantile: float | None
) -> Outcome:
    """Train many clients; epsilon None: without privacy."""
    privacy = [] if epsilon is None else [fh.ClientDP(epsilon, 1e-3, clip=0.5, quantile=quantile)]
    options = {"batch_size": 16, "lr": 0.3, "local_epochs": 1, "participation": 0.2, "sampler": "poisson"}
    run = fh.run(
        federation, MODEL, rounds=rounds, seed=seed, evaluate_every=rounds, executor="stack", privacy=privacy, **options
    )
    spent = run.guarantees[0].epsilon if privacy else float("inf")
    return run.accuracy or 0.0, rounds / run.seconds, spent


def show(name: str, outcomes: Sequence[Outcome]) -> None:
    """Print a row: mean and deviation of the accuracy, speed and ε."""
    accuracies, speeds, epsilons = zip(*outcomes, strict=True)
    spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
    print(f"| {name} | {mean(accuracies):.1f} ± {spread:.1f} | {max(speeds):.0f} | {epsilons[0]:.2f} |", flush=True)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of runs of each row")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of DP-SGD")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of DP-FedAvg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    one = fh.Federation.load("digits", "iid", clients=1, subset=22 * BATCH)  # whole batches: both have the same rate
    many = fh.Federation.load("digits", "iid", clients=200)
    sgd: dict[str, Callable[[int], Outcome]] = {}
    for z in (1.0, 2.0):
        sgd[f"fedhead, z = {z:g}"] = lambda seed, z=z: fedhead_dp_sgd(one, options.epochs, z, seed)  # type: ignore[misc]
        sgd[f"Opacus, z = {z:g}"] = lambda seed, z=z: opacus_dp_sgd(one, options.epochs, z, seed)  # type: ignore[misc]
    sgd["fedhead, no privacy"] = lambda seed: fedhead_dp_sgd(one, options.epochs, None, seed)
    print("| DP-SGD | accuracy | steps/s | ε |\n|---|---|---|---|")
    for name, measure in sgd.items():
        show(name, [measure(seed) for seed in range(options.seeds)])
    print("\n| DP-FedAvg | accuracy | rounds/s | ε |\n|---|---|---|---|")
    for epsilon, quantile in ((None, None), (50.0, None), (50.0, 0.5), (8.0, None)):
        name = "no privacy" if epsilon is None else f"ε = {epsilon:g}{', adaptive clipping' if quantile else ''}"
        show(name, [dp_fedavg(many, options.rounds, epsilon, seed, quantile) for seed in range(options.seeds)])


if __name__ == "__main__":
    main()
