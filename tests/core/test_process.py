"""A process that watches another one leaves with it, in the middle of its work."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from fedhead.core.system.process import ProcessIdentity, exit_with
exit_with(ProcessIdentity.of(int(sys.argv[1])), lambda: print("left", flush=True), seconds=0.05)
print("works", flush=True)
while True:
    sum(range(1000))
"""


def test_a_process_leaves_with_the_one_it_watches() -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        command = [sys.executable, "-c", PROGRAM, str(other.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            try:
                assert watching.stdout is not None
                assert watching.stdout.readline() == "works\n"
                other.kill()
                assert watching.wait(30) == 1
                assert watching.stdout.read() == "left\n"
            finally:
                other.kill()
                watching.kill()
