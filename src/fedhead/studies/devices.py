"""A command on several devices of one machine: each has its own process, which takes the next run that none has."""

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

_PARENT = "FEDHEAD_PARENT"  # in the environment of each device's process, the pid of the one that started it


def read_devices(text: str) -> list[str]:
    """Return the names of devices.

    >>> read_devices("0,1"), read_devices("cuda:1,cpu")
    (['cuda:0', 'cuda:1'], ['cuda:1', 'cpu'])
    """
    found = [f"cuda:{word}" if word.isdecimal() else word for word in re.split(r"[\s,]+", text.strip(", "))]
    if not found or not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in found):
        raise BadInput(f"--devices {text!r}: write the numbers of GPUs with commas between, such as 0,1")
    return found


def check_devices(devices: str | None, *, device: str, shard: str | None, engine: str = "local") -> list[str]:
    """Return the names of devices, before any process is started.

    Args:
        devices: What `--devices` said; None: nothing, so there are none.
        device: What `--device` said.
        shard: What `--shard` said.
        engine: What `--engine` said.

    Raises:
        BadInput: If these do not go together, or there is no such GPU.
    """
    if devices is None:
        return []
    names = read_devices(devices)
    if engine != "local":
        raise BadInput(f"--devices shares the runs among processes of this machine: leave --engine {engine} out")
    if device != "auto" or shard is not None:
        raise BadInput(
            f"--devices says where to compute and shares the runs: leave --{'device' if shard is None else 'shard'} out"
        )
    numbers = [int(name.partition(":")[2] or 0) for name in names if name != "cpu"]
    if numbers:
        import torch

        count = torch.cuda.device_count()
        if max(numbers) >= count:
            there = f"torch sees {count}, numbered from 0" if count else "torch sees none"
            raise BadInput(f"--devices {devices}: there is no GPU {max(numbers)}; {there}")
    return names


@contextmanager
def on_each(names: Sequence[str], claims: Path | None) -> Iterator[tuple[Path | None, list[str]]]:
    """Run this very command once per device, and wait for all of them; each takes runs that no other has taken.

    Args:
        names: The devices; none: nothing is run here.
        claims: What `--claims` said, where this is one of these processes itself.

    Yields:
        The folder of their claims, which says what was taken and what failed, and what became of processes that ended
        before they could say what failed.
    """
    if not names:
        if claims is None:
            yield None, []
            return
        with _ending_with_parent():
            yield claims, []
        return
    command = [sys.executable, "-m", "fedhead.cli", *without_devices(sys.argv[1:])]
    environment = {**os.environ, **shared_threads(names, os.environ), _PARENT: str(os.getpid())}
    with tempfile.TemporaryDirectory(prefix="fedhead-claims-") as shared:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _changed_signal(signal.SIGINT, signal.SIG_IGN):  # a terminal sends it to all, but one is to answer
                for name in names:
                    own = [*command, "--device", name, "--claims", shared]
                    processes.append(subprocess.Popen(own, stdout=subprocess.DEVNULL, env=environment))
            codes = [process.wait() for process in processes]
            broken = [_ending(name, code) for name, code in zip(names, codes, strict=True) if code]
        except BaseException:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            raise
        yield Path(shared), broken


def shared_threads(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which processes on GPUs share the host's threads, as far as the user has not set them.

    If each took all of them, they would wait for each other most of the time. On a CPU the number of threads decides
    how a run's sums round, so it stays what it is in a single process.

    Args:
        names: The devices, one per process.
        environment: The variables of this process.
    """
    import torch

    if "cpu" in names or "OMP_NUM_THREADS" in environment:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // len(names)))}


def _ending(name: str, code: int) -> str:
    """Say how the process of a device came to its end.

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
    """End this process when its parent ends, or ends it: that one tells the user how to go on."""
    parent = os.environ.pop(_PARENT, None)
    if parent is not None:
        exit_with_parent(int(parent))
    with _changed_signal(signal.SIGTERM, signal.SIG_DFL):
        yield


@contextmanager
def _changed_signal(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """Handle a signal in another way for a while; processes that are started meanwhile ignore it if it is ignored."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say what becomes of signals
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def without_devices(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments without the option.

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
