"""FedJAX's own FedAvg of SimpleCNN, for `targets.py`: client-steps per second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch is to have the GPU after jax

import jax
import numpy as np
from jax.example_libraries import stax

import fedhead as fh

BATCH, SHAPE, CLASSES = 64, (32, 32, 3), 10
TREE_FUNCTIONS = ("tree_map", "tree_leaves", "tree_flatten", "tree_unflatten", "tree_structure", "tree_reduce")


def restore_tree_functions(module: ModuleType) -> None:
    """Put the functions of `jax.tree_util` back into `jax`, where FedJAX 0.0.17 calls them and newer jax lacks them.

    Args:
        module: jax.
    """
    for name in TREE_FUNCTIONS:
        if not hasattr(module, name):
            setattr(module, name, getattr(module.tree_util, name))


restore_tree_functions(jax)
import fedjax  # noqa: E402  # it needs the functions above
from fedjax.algorithms import fed_avg  # noqa: E402


def simplecnn() -> fedjax.Model:
    """Build fedhead's `simplecnn` with its linear head, channels last as jax prefers them.

    Raises:
        RuntimeError: If it has another number of parameters than fedhead's.
    """
    layers = (
        *(stax.Conv(6, (5, 5)), stax.MaxPool((2, 2), (2, 2)), stax.Relu),
        *(stax.Conv(16, (5, 5)), stax.MaxPool((2, 2), (2, 2)), stax.Relu, stax.Flatten),
        *(stax.Dense(120), stax.Relu, stax.Dense(84), stax.Relu),
        *(stax.Dense(84), stax.Relu, stax.Dense(256), stax.Dense(CLASSES)),
    )
    model = fedjax.create_model_from_stax(
        *stax.serial(*layers), (-1, *SHAPE), lambda batch, logits: cross_entropy(logits, batch["y"])
    )
    count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(model.init(jax.random.PRNGKey(0))))
    wanted = sum(p.numel() for p in fh.build("simplecnn", (3, 32, 32), CLASSES).parameters())
    if count != wanted:
        raise RuntimeError(f"the network has {count} parameters, fedhead's simplecnn {wanted}")
    return model


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Return the loss of each sample."""
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)[:, 0]


def steps_per_s(clients: int, steps: int, rounds: int, device: str) -> Mapping[str, float]:
    """Train rounds of FedAvg with FedJAX's jit backend in fp32, and return the client-steps per second of the fastest.

    Args:
        clients: How many clients train in a round, each with as many random images as its steps need.
        steps: Local steps per client.
        rounds: How many rounds are timed, after one that warms up.
        device: Where to compute.

    Returns:
        The speed of a round as FedJAX's users write it, with the samples in host memory and the server's update, and
        that of the local steps alone, with all batches on the device before the time is taken.
    """
    jax.config.update("jax_default_matmul_precision", "highest")  # fp32 is without TF32
    with jax.default_device(jax.devices("cpu" if device == "cpu" else "gpu")[0]):
        model = simplecnn()
        gradient = fedjax.model_grad(model)
        optimizer = fedjax.optimizers.sgd(learning_rate=0.01, momentum=0.9)
        batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1)
        algorithm = fed_avg.federated_averaging(gradient, optimizer, fedjax.optimizers.sgd(1.0), batches)
        train = fed_avg.create_train_for_each_client(gradient, optimizer)
        rng, keys = np.random.RandomState(0), jax.random.split(jax.random.PRNGKey(0), clients)
        data = [
            fedjax.ClientDataset(
                {
                    "x": rng.randn(steps * BATCH, *SHAPE).astype(np.float32),
                    "y": rng.randint(0, CLASSES, steps * BATCH).astype(np.int32),
                }
            )
            for _ in range(clients)
        ]
        state = algorithm.init(model.init(jax.random.PRNGKey(0)))
        in_host_memory = [(str(k), dataset, keys[k]) for k, dataset in enumerate(data)]
        on_device = [
            (name, [jax.device_put(batch) for batch in dataset.shuffle_repeat_batch(batches)], key)
            for name, dataset, key in in_host_memory
        ]

        with fedjax.for_each_client_backend("jit"):
            count = clients * steps
            return {
                "whole rounds": count / seconds(lambda: algorithm.apply(state, in_host_memory)[0].params, rounds),
                "local steps": count / seconds(lambda: list(train(state.params, on_device)), rounds),
            }


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return what the fastest of several repeats takes, after one that compiles."""
    jax.block_until_ready(work())
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - begin)
    return min(taken)
