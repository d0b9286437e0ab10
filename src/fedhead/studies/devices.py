"""Multi-device commands: one process per device, each of which claims the next free run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.core.system.process import exit_with_parent

END_SECONDS = 10.0  # time limit for a terminated process to end, before it is killed
_PARENT = "FEDHEAD_PARENT"  # environment variable of a device's process: pid of its parent


def read_devices(text: str) -> list[str]:
    """Parse the names of devices.

    >>> read_devices("0,1"), read_devices("cuda:1,cpu")
    (['cuda:0', 'cuda:1'], ['cuda:1', 'cpu'])
    """
    names = [f"cuda:{word}" if word.isdecimal() else word for word in re.split(r"[\s,]+", text.strip(", "))]
    if not names or not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in names):
        raise BadInput(f"--devices {text!r}: write the numbers of GPUs with commas between, such as 0,1")
    return names


def check_devices(devices: str | None, *, device: str, shard: str | None) -> list[str]:
    """Check `--devices` against the other options and return the device names.

    Args:
        devices: Value of `--devices`; None: not given, no names are returned.
        device: Value of `--device`.
        shard: Value of `--shard`.

    Raises:
        BadInput: If the options can't be combined, or there is no such GPU.
    """
    if devices is None:
        return []
    names = read_devices(devices)
    if device != "auto" or shard is not None:
        raise BadInput(
            f"--devices says where to compute and shares the runs: leave --{'device' if shard is None else 'shard'} out"
        )
    numbers = [int(name.partition(":")[2] or 0) for name in names if name != "cpu"]
    if numbers:
        import torch

        count = torch.cuda.device_count()
        if max(numbers) >= count:
            visible = f"torch sees {count}, numbered from 0" if count else "torch sees none"
            raise BadInput(f"--devices {devices}: there is no GPU {max(numbers)}; {visible}")
    return names


@contextmanager
def on_each(
    names: Sequence[str], claims: Path | None, engine: str = "local"
) -> Iterator[tuple[Path | None, list[str]]]:
    """Run this command once per device, in processes that share the runs by claims, and wait for them.

    Args:
        names: Devices; empty: no process is started.
        claims: Value of `--claims`, if this is one of these processes.
        engine: Value of `--engine`; with `shared` each process has a shard of its own, since it begins all its runs at
            once.

    Yields:
        The folder of claims, and a message for each process that crashed.
    """
    if not names:
        if claims is None:
            yield None, []
            return
        with _ending_with_parent():
            yield claims, []
        return
    command = [sys.executable, "-m", "fedhead", *without_devices(sys.argv[1:])]
    environment = {**os.environ, **shared_threads(names, os.environ), _PARENT: str(os.getpid())}
    with tempfile.TemporaryDirectory(prefix="fedhead-claims-") as shared:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _changed_signal(signal.SIGINT, signal.SIG_IGN):  # Ctrl-C reaches all; only the parent handles it
                for number, name in enumerate(names, start=1):
                    arguments = [*command, "--device", name, "--claims", shared]
                    if engine == "shared":
                        arguments += ["--shard", f"{number}/{len(names)}"]
                    processes.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=environment))
            codes = [process.wait() for process in processes]
            broken = [_ending(name, code) for name, code in zip(names, codes, strict=True) if code]
        except BaseException:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:  # the exception of its signal was lost, as in a destructor
                    process.kill()
            raise
        yield Path(shared), broken


def shared_threads(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that divide the host's threads among GPU processes, unless the user set them.

    Processes with all threads each would oversubscribe the CPU. With a CPU device nothing is changed: the number of
    threads affects rounding.

    Args:
        names: Devices, one per process.
        environment: Environment variables of this process.
    """
    import torch

    if "cpu" in names or "OMP_NUM_THREADS" in environment:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // len(names)))}


def _ending(name: str, code: int) -> str:
    """Describe how the process of a device ended.

    >>> _ending("cpu", -9)
    'the process of cpu was ended by signal 9, perhaps for lack of memory'
    """
    if code >= 0:
        return f"the process of {name} failed, see above"
    return f"the process of {name} was ended by signal {-code}" + (
        ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    )


@contextmanager
def _ending_with_parent() -> Iterator[None]:
    """Exit silently with the parent process, which prints how to resume."""
    parent = os.environ.pop(_PARENT, None)
    if parent is not None:
        exit_with_parent(int(parent))
    with _changed_signal(signal.SIGTERM, signal.SIG_DFL):
        yield


@contextmanager
def _changed_signal(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """Replace a signal handler inside the block; child processes inherit an ignored signal."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def without_devices(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments without `--devices`.

    >>> without_devices(["sweep", "a.yaml", "--devices", "0,1", "--seeds", "3"]), without_devices(["--devices=0", "x"])
    (['sweep', 'a.yaml', '--seeds', '3'], ['x'])
    """
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument != "--devices" and not argument.startswith("--devices="):
            kept.append(argument)
        skip = argument == "--devices" and not skip
    return kept
