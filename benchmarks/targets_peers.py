"""The rows of `targets.py` that measure other libraries, each beside fedhead on the same machine."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from unittest.mock import MagicMock

from targets_measured import Measured, bench_rates


def require(module: str, package: str) -> None:
    """Refuse to measure a library that can't be imported.

    Args:
        module: Its module.
        package: What pip calls it, with the version that the measurement was written for.

    Raises:
        RuntimeError: If it is not there.
    """
    if importlib.util.find_spec(module) is None:
        raise RuntimeError(f"{module} is not installed: pip install {package}, or put its source on PYTHONPATH")


def stand_in(*modules: str) -> None:
    """Let modules be imported that are not installed and that the measurement does not need.

    Args:
        modules: Their names, a package before what is in it.
    """
    absent = {name for name in modules if "." not in name and importlib.util.find_spec(name) is None}
    sys.modules |= {name: MagicMock() for name in modules if name.partition(".")[0] in absent}


def pfl_peer(options: argparse.Namespace) -> Iterator[Measured]:
    """The training of the row `pfl` by pfl-research itself, for some rounds; `pfl` must be importable."""
    require("pfl", "pfl==0.6.0")
    # nothing is private here: pfl-research needs no accountants
    for package in ("dp_accounting", "prv_accountant", "multiprocess"):
        stand_in(package, f"{package}.pld", f"{package}.rdp")
    from targets_pfl import seconds_per_round

    rounds, users, cohort = (2, 4, 2) if options.tiny else (60, 1000, 50)
    seconds = seconds_per_round(rounds, users, cohort, options.device)
    yield Measured("pfl_peer: rounds", cohort * 5 / seconds, "client-steps/s", "", "fp32")
    yield Measured("pfl_peer: 1,500 rounds at that rate, start and tests left out", 1500 * seconds, "s", "", "fp32")


def fedjax_peer(options: argparse.Namespace) -> Iterator[Measured]:
    """FedAvg of SimpleCNN with 10 clients by FedJAX, and by fedhead; `fedjax` and jax must be importable."""
    require("jax", "jax")
    require("fedjax", "fedjax==0.0.17")
    # the models and data sets that FedJAX brings, and its checkpoints
    stand_in("haiku", "msgpack", "requests")
    from targets_fedjax import steps_per_s

    clients, steps, rounds = (2, 2, 1) if options.tiny else (10, 100, 5)
    rates = steps_per_s(clients, steps, rounds, options.device)
    for name, rate in rates.items():
        yield Measured(f"fedjax_peer: FedAvg, {clients} clients, {name}", rate, "client-steps/s", "", "fp32")
    best = max(rates.values())
    for found in bench_rates("simplecnn", clients, ["stack"], ["fp32", "bf16"], options):
        name = f"fedjax_peer: fedhead, {clients} clients"
        yield Measured(name, found.steps_per_s, "client-steps/s", "", found.precision)
        yield Measured(f"{name}, against FedJAX", found.steps_per_s / best, "x", "", found.precision)
