"""Command line interface: `fedhead --help` lists the commands.

Heavy imports are lazy, so that help and usage errors are fast.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedhead.cli import analyse as analyse  # importing a module registers its commands
from fedhead.cli import audit as audit
from fedhead.cli import bench as bench
from fedhead.cli import calibrate as calibrate
from fedhead.cli import deploy as deploy
from fedhead.cli import export as export
from fedhead.cli import ledger as ledger
from fedhead.cli import ls as ls
from fedhead.cli import oneshot as oneshot
from fedhead.cli import partition as partition
from fedhead.cli import report as report
from fedhead.cli import reproduce as reproduce
from fedhead.cli import run as run
from fedhead.cli import sweep as sweep
from fedhead.cli import tune as tune
from fedhead.cli import wire as wire
from fedhead.cli.app import HELP, find, overview
from fedhead.cli.output import Stopped
from fedhead.core.system.assignments import refuse_repeated
from fedhead.core.system.errors import BadInput, FedheadError, first_line, machine_fault
from fedhead.core.system.log import log_to_stderr
from fedhead.core.system.malloc import tune_malloc
from fedhead.core.system.user_line import user_line

MACHINE, INTERRUPTED = 3, 130  # exit codes of a machine failure and of Ctrl-C


def call(arguments: Sequence[str]) -> int:
    """Run a command line.

    Args:
        arguments: The words after `fedhead`; without a command, the help is shown.

    Returns:
        The exit code: 0 done, 1 failed, 2 the user can fix it, 3 the machine failed (a full disk, no memory left), 130
        interrupted, 143 terminated.
    """
    try:
        with log_to_stderr():
            _run(arguments)
        sys.stdout.flush()
        return 0
    except FedheadError as error:
        return _fail(str(error), MACHINE if machine_fault(error) else 2 if isinstance(error, BadInput) else 1)
    except Stopped as error:
        again = "" if error.out is None else f"; go on with: {shlex.join(_resumed(arguments, error.out))}"
        print(f"{error}{again}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if fault := machine_fault(error):
            fix = "continue the run with --resume" if "run" in arguments[:1] else "give the command again"
            return _fail(f"{fault}; fix that, and {fix}", MACHINE)
        if isinstance(error, OSError):
            return _fail(f"{error.filename}: {error.strerror}; give another path" if error.filename else str(error), 2)
        where = user_line(error)
        if where is None or os.environ.get("FEDHEAD_TRACEBACK"):
            raise
        return _fail(f"{where}: {first_line(error)}; set FEDHEAD_TRACEBACK=1 to see the whole traceback", 1)


def _run(arguments: Sequence[str]) -> None:
    """Run a command, or print the version or a help text."""
    words = [word for word in arguments if word not in HELP]
    if words == ["--version"]:
        from fedhead.core.system.version import VERSION

        print(VERSION)
    elif not words or words in (["deploy"], ["statistics"]):
        print(overview("".join(f"{word} " for word in words)), end="")
    else:
        command, rest = find(words)
        if len(words) < len(arguments):
            print(command.parser().format_help(), end="")
        else:
            values = command.parser().read(rest)
            refuse_repeated(values.get("assignments", ()))
            command.function(**values)


def main() -> None:
    """Run the command `fedhead`: the entry point of the installed script."""
    tune_malloc()
    code = call(sys.argv[1:])
    # Skip Python's teardown of objects, which takes more than a second with a GPU.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _resumed(arguments: Sequence[str], out: Path) -> list[str]:
    """Return the command line that continues an interrupted run."""
    words = ["fedhead", *arguments]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(out)]
    return words if "--resume" in words else [*words, "--resume"]


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
