"""A command on several devices of one machine: each has its own process, which takes the next run that none has."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Annotated

import typer

from fedhead.cli.options import words
from fedhead.cli.output import GOES_ON
from fedhead.core.errors import BadInput, FedheadError

Devices = Annotated[
    str | None, typer.Option(metavar="LIST", help="Share the runs among these GPUs, such as 0,1: a process for each.")
]


def read_devices(text: str) -> list[str]:
    """Return the names of devices.

    >>> read_devices("0,1"), read_devices("cuda:1,cpu")
    (['cuda:0', 'cuda:1'], ['cuda:1', 'cpu'])
    """
    found = [f"cuda:{word}" if word.isdecimal() else word for word in words(text)]
    if not found or not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in found):
        raise BadInput(f"--devices {text!r}: write the numbers of GPUs with commas between, such as 0,1")
    return found


def run_on_each(devices: str, *, device: str, shard: str | None) -> None:
    """Run this very command once per device, and wait for all of them; each takes runs that no other has taken.

    Args:
        devices: What `--devices` said.
        device: What `--device` said.
        shard: What `--shard` said.

    Raises:
        BadInput: If these do not go together.
        FedheadError: If one of the processes fails; the others go on to their end.
    """
    names = read_devices(devices)
    if device != "auto" or shard is not None:
        raise BadInput(
            f"--devices says where to compute and shares the runs: leave --{'device' if shard is None else 'shard'} out"
        )
    command = [sys.executable, "-m", "fedhead.cli", *without_devices(sys.argv[1:])]
    with tempfile.TemporaryDirectory(prefix="fedhead-") as claims:
        processes = [
            subprocess.Popen([*command, "--device", name, "--claims", claims], stdout=subprocess.DEVNULL)
            for name in names
        ]
        try:
            failed = [name for name, process in zip(names, processes, strict=True) if process.wait()]
        except BaseException:
            for process in processes:
                process.terminate()
            raise
    if failed:
        raise FedheadError(f"--devices: the process of {failed[0]} failed, see above; {GOES_ON}")


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
