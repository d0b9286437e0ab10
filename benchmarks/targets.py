"""Measure what a GPU is to reach: whole commands, executors, stages and client states, one row after another.

    python benchmarks/targets.py [ROW ...] [--model NAME] [--device cuda] [--data FOLDER] [--out targets.csv]
                                 [--minutes 60] [--tiny]

Rows: simplecnn40, resnet20, stages, pfl, pfl_peer, fedjax_peer, scaffold, real_run, first_round,
architectures; all of them unless some are named. Each runs in its own process within its own time limit, and one that
fails does not stop the others; `pfl_peer` and `fedjax_peer` measure other libraries, which must be importable. Every
measurement is appended to the file as soon as it is known, beside the eager loop's speed on the same machine. Without
--data the images are random and of CIFAR-10's shape. `real_run` and `first_round` have two models,
SimpleCNN and ResNet-20; --model takes one of them. --tiny tries the script itself on a few samples.

Python's bytecode is kept in a folder while the script runs, and torch's is made first where an installation lacks it:
the caches that are empty at the start of `first_round` are those of the compilers.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from targets_measured import Measured
from targets_rows import MODELS, ROWS, eager

MEASURED = "measured: "
HEAD = [*Measured._fields, "seconds", "eager_steps_per_s", "gpu", "torch"]
COMPILED = ("torch", "triton", "sympy", "numpy", "fedhead")  # packages whose import takes seconds without bytecode


def row(name: str, options: argparse.Namespace) -> None:
    """Measure one row in this process, and print what it yields."""
    import torch

    measure = eager if name == "eager" else ROWS[name][0]
    gpu = torch.cuda.get_device_name() if options.device != "cpu" else "none"
    begin = time.perf_counter()
    for found in measure(options):
        seconds = time.perf_counter() - begin
        more = {"seconds": round(seconds, 2), "gpu": gpu, "torch": torch.__version__}
        print(MEASURED + json.dumps(found._asdict() | more), flush=True)
        begin = time.perf_counter()


def measured(
    name: str, arguments: list[str], limit: float, env: Mapping[str, str], on_found: Callable[[dict[str, Any]], None]
) -> str:
    """Measure one row in its own process.

    Args:
        name: The row.
        arguments: Those of this script.
        limit: Seconds after which the process and those that it started are ended.
        env: Its environment.
        on_found: Called with each measurement as soon as it is known.

    Returns:
        Why it failed; empty if it did not.
    """
    errors: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), name, *arguments, "--here"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
        reader.start()
        timer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.start()
        for line in process.stdout:
            if line.startswith(MEASURED):
                on_found(json.loads(line.removeprefix(MEASURED)))
        code = process.wait()
        late = not timer.is_alive()
        timer.cancel()
        reader.join()
    if late:
        return f"not done after {limit:.0f} s"
    return "" if code == 0 else "".join(errors)[-2000:].strip()


class Table:
    """Prints measurements and appends them to a CSV file, with the eager loop's speed on the same machine.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.eager: float | None = None

    def add(self, found: dict[str, Any]) -> None:
        """Append one measurement."""
        print(f"{found['name']}, {found['precision']}: {found['value']:.4g} {found['unit']}", flush=True)
        if found["name"].startswith("eager"):
            self.eager = round(found["value"], 1)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEAD)
            if new:
                writer.writeheader()
            writer.writerow({**found, "eager_steps_per_s": self.eager})


def environment(bytecode: Path) -> dict[str, str]:
    """Return an environment whose processes keep Python's bytecode; that of large packages is made if missing."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "torch is installed"
    assert spec.origin is not None, "it is no namespace"
    if Path(importlib.util.cache_from_source(spec.origin)).exists():
        return env
    env["PYTHONPYCACHEPREFIX"] = str(bytecode)
    specs = [importlib.util.find_spec(name) for name in COMPILED]
    folders = [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", *folders], env=env, check=False)
    return env


def _gpu_is_visible() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Measure the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"among {', '.join(ROWS)}; all of them unless some are named")
    parser.add_argument("--model", choices=MODELS, help="real_run and first_round of this one alone")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", help="a folder with CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("targets.csv"))
    parser.add_argument("--minutes", type=float, default=60.0, help="no row begins, and none goes on, after that")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        row(options.rows[0], options)
        return
    names = options.rows or list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"unknown row {unknown[0]!r}: select from {', '.join(ROWS)}")
    if options.device != "cpu" and not _gpu_is_visible():
        parser.error(f"--device {options.device}: no GPU is visible to torch; --tiny --device cpu tries the script")
    arguments = ["--device", options.device, *(["--data", options.data] if options.data else [])]
    arguments += ["--tiny"] if options.tiny else []
    arguments += ["--model", options.model] if options.model else []
    end = time.monotonic() + 60 * options.minutes
    table, failed = Table(options.out), 0
    with tempfile.TemporaryDirectory() as bytecode:
        env = environment(Path(bytecode))
        for name in ["eager", *names]:
            limit = min(90.0 if name == "eager" else ROWS[name][1], end - time.monotonic())
            why = measured(name, arguments, limit, env, table.add) if limit > 5 else "no time left"
            if why:
                failed += 1
                print(f"{name} is not complete: {why}", file=sys.stderr, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
