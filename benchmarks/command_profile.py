"""Run a whole command and print where its time goes, in intervals by the clock.

    python benchmarks/command_profile.py [--every 10] -- reproduce ccvr/table2 --cells ... --device cuda

Each line has the seconds since the start, how busy the GPU was (the mean of nvidia-smi's samples), and the functions of
fedhead that the process was in, by share of the time; threads that wait for a lock are left out.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from types import FrameType

STEP = 0.01
WAITING = ("wait", "_wait_for_tstate_lock", "wait_for", "join", "acquire", "_worker", "select", "poll")


def innermost(frame: FrameType | None) -> str:
    """Return the innermost function of fedhead that a stack of calls is in."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("fedhead."):
            return f"{module.removeprefix('fedhead.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside fedhead"


def watch(main: int, every: float, done: threading.Event, busy: list[int]) -> None:
    """Print a line for each interval until the command has ended."""
    begin, seen, last = time.perf_counter(), Counter[str](), 0.0
    while True:
        stop = done.wait(STEP)
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident() and frame.f_code.co_name not in WAITING:
                name = innermost(frame)
                if name != "outside fedhead" or ident == main:
                    seen[name] += 1
        now = time.perf_counter() - begin
        if stop or now - last >= every:
            used = f"{sum(busy) / len(busy):3.0f} %" if busy else "  - "
            top = ", ".join(f"{name} {count * STEP / (now - last):.0%}" for name, count in seen.most_common(7))
            print(f"[{now:6.1f} s, GPU {used}] {top}", file=sys.stderr, flush=True)
            seen.clear()
            busy.clear()
            last = now
        if stop:
            return


def sample_gpu(busy: list[int]) -> subprocess.Popen[str] | None:
    """Collect nvidia-smi's samples of how busy the GPU is, where there is one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            busy.append(int(line.split("\n")[0].split(",")[0]))

    threading.Thread(target=read, daemon=True).start()
    return process


def main() -> None:
    """Run the command in this process, watched by a thread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    busy: list[int] = []
    sampler = sample_gpu(busy)
    done = threading.Event()
    begin = time.perf_counter()
    watcher = threading.Thread(target=watch, args=(threading.get_ident(), asked.every, done, busy))
    watcher.start()
    try:
        from fedhead.cli import main as fedhead

        sys.argv = ["fedhead", *asked.command]
        fedhead()
    except SystemExit as end:
        print(f"exit {end.code}", file=sys.stderr)
    finally:
        done.set()
        watcher.join()
        if sampler is not None:
            sampler.terminate()
        print(f"whole command: {time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
