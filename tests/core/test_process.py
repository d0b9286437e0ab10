"""A process that watches its parent leaves with it, in the middle of its work."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from fedhead.core.system.process import exit_with_parent
exit_with_parent(int(sys.argv[1]), seconds=0.05)
print("works", flush=True)
while True:
    sum(range(1000))
"""


def test_a_process_leaves_with_its_parent() -> None:
    command = ["sh", "-c", f'"{sys.executable}" -c "$1" $$ & wait', "sh", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "works\n"
        parent.kill()
        assert parent.stdout.read() == "", "the pipe closes when the process has left"
