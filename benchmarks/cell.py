"""One CCVR cell at paper scale on a GPU, the whole command by the clock: with empty compiler caches, then again.

    python benchmarks/cell.py --data FOLDER [--precision bf16] [--repeats 1] [NAME=VALUE ...]

FOLDER holds CIFAR-10. Assignments such as rounds=2 change the recipe in cell.yaml, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).with_name("cell.yaml")


def timed(out: Path, caches: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the command, with the compilers' caches in a folder of their own."""
    command = [sys.executable, "-m", "fedhead", "run", str(RECIPE), *options.assignments, "--out", str(out)]
    command += ["--data-dir", options.data, "--device", options.device, "--precision", options.precision]
    places = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--quiet", "--json"], env={**os.environ, **places}, check=True, stdout=subprocess.PIPE, text=True
    )
    seconds = time.perf_counter() - begin
    result = json.loads(done.stdout.splitlines()[-1])
    rounds = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = {name: result[name] for name in ("accuracy", "stages", "compile_seconds", "executor")}
    return {"seconds": seconds, "rounds": sum(rounds), **kept}


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("assignments", nargs="*")
    options = parser.parse_args()
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for state in ("cold", "warm"):
                found = timed(Path(folder) / state, Path(folder) / "caches", options)
                print(json.dumps({"caches": state, **found}), flush=True)


if __name__ == "__main__":
    main()
