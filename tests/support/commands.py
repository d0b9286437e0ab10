"""Commands as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def listen() -> None:
    """React to Ctrl-C again, as `preexec_fn`: a shell's background jobs inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def succeed(command: list[str], cwd: Path) -> str:
    """Run a command that has to succeed, with this interpreter's programs first on the path; return its output."""
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout
