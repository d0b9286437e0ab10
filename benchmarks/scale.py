"""Many clients, many rounds and many classes on a CPU: the time and the peak memory of whole commands.

    python benchmarks/scale.py [--cases NAME ...] [--out benchmarks/scale.csv]

Each case is one `fedhead run` and one `fedhead report` over its run folder, each in its own process, which writes
checkpoints as any run does. One line per case goes to the file `--out`; docs/scale.md shows what was measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_name("scale_data.py").name
CLIENTS = [
    f"dataset={DATA}:many_samples",
    "partition=dirichlet(1.0)",
    "clients=10000",
    "participation=0.01",
    "rounds=200",
    "model.hidden=[32]",
    "batch_size=16",
]
CLASSES = [f"dataset={DATA}:many_classes", "partition=dirichlet(0.5)", "rounds=5"]
CCVR = [*CLASSES, "stages=[ccvr]", "stage.ccvr.samples=100", "stage.ccvr.epochs=1"]
CASES: Mapping[str, Sequence[str]] = {
    "fedavg-20-rounds": [*CLIENTS, "rounds=20"],
    "fedavg": CLIENTS,
    "scaffold": [*CLIENTS, "method=scaffold"],
    "fedrep": [*CLIENTS, "method=fedrep", "client_test=0.2", "evaluate_every=20"],
    "ccvr-full-64": [*CCVR, "model.hidden=[64]"],
    "ccvr-full-128": [*CCVR, "model.hidden=[128]"],
    "ccvr-diagonal-128": [*CCVR, "model.hidden=[128]", "stage.ccvr.covariance=diagonal"],
    "ccvr-low-rank-128": [*CCVR, "model.hidden=[128]", "stage.ccvr.covariance=low-rank"],
    "fedetf": [*CLASSES, "method=fedetf"],
}


class Usage(NamedTuple):
    """Time and memory of a command."""

    seconds: float  # by the clock
    cpu_seconds: float  # of processors, which other programs beside it change little
    memory_mb: float  # the most that it held at once


def command(words: Sequence[str]) -> Usage:
    """Run a fedhead command beside the data's file.

    Raises:
        RuntimeError: If it failed.
    """
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedhead", *words], cwd=Path(__file__).parent, stdout=printed, stderr=printed
        )
        _, status, usage = os.wait4(process.pid, 0)  # the usage of this child alone
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            printed.seek(0)
            raise RuntimeError(f"{' '.join(words)} ended with code {process.returncode}:\n{printed.read()}")
    seconds = time.perf_counter() - begin
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def measure(assignments: Sequence[str], out: Path) -> dict[str, Any]:
    """Run a recipe in the folder `out`, then a report over it, and say what both took."""
    given = {word.partition("=")[0]: word for word in assignments}.values()  # a later value replaces an earlier one
    run = command(["run", "digits", *given, "--out", str(out), "--quiet", "--device", "cpu"])
    report = command(["report", str(out), "--out", str(out.with_suffix(".html"))])
    result = json.loads((out / "result.json").read_text())
    after = [stage["accuracy"] for stage in result["stages"].values()]
    return {
        "seconds": round(run.seconds, 1),
        "cpu_seconds": round(run.cpu_seconds, 1),
        "memory_mb": round(run.memory_mb),
        "report_cpu_seconds": round(report.cpu_seconds, 1),
        "report_memory_mb": round(report.memory_mb),
        "checkpoint_mb": round((out / "checkpoint.safetensors").stat().st_size / 1e6, 2),
        "metrics_mb": round((out / "metrics.jsonl").stat().st_size / 1e6, 2),
        "rounds": result["rounds"],
        "executor": result["executor"],
        "accuracy": result["accuracy"],
        "accuracy_after_stage": after[-1] if after else "",
    }


def main() -> None:
    """Measure the cases one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    rows = []
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"case": name, **measure(CASES[name], Path(folder) / "run")})
        print(json.dumps(rows[-1]), flush=True)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
