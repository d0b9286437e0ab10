"""Scripts that run in their own process, forked from one that has imported fedhead: the import takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["fedhead.public", "sklearn.datasets", "matplotlib.pyplot", "pandas", "scripts"])


def run_script(script: Path, folder: Path) -> str:
    """Run a Python file in a folder, as `python FILE` would, and return what it printed; a failure shows it."""
    output = script.with_suffix(".output")
    process = _context.Process(target=_run, args=(script, folder, output))
    process.start()
    process.join()
    printed = output.read_text(encoding="utf-8") if output.exists() else ""
    assert process.exitcode == 0, printed
    return printed


def _run(script: Path, folder: Path, output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        raise
    sys.stdout.flush()
