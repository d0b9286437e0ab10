"""The command line: `fedhead --help` lists what it can do.

Heavy imports wait until a command needs them, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

import click
import typer
import typer.core

from fedhead.core.errors import BadInput, FedheadError

typer.core.HAS_RICH = False  # with rich installed, typer writes "\[required]" even where the markup is off
app = typer.Typer(
    name="fedhead",
    help="Federated classification on non-IID data: run, compare and report.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def call(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code: 0 done, 1 failed, 2 the user can fix it."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="fedhead", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except BadInput as error:
        return _fail(str(error), 2)
    except FedheadError as error:
        return _fail(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped; a run goes on from where it was with --resume", 130)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, MemoryError) as error:
        return _fail(str(error) or "out of memory", 1)


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """The entry point of the command `fedhead`."""
    code = call(sys.argv[1:])
    # Python would take every object apart now, for more than a second with a GPU; the operating system is faster.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("fedhead"))
        raise typer.Exit


from fedhead.cli import (  # noqa: E402 (they add their commands to the app above)
    analysing,
    benching,
    calibrating,
    deploying,
    inspecting,
    reproducing,
    running,
)

__all__ = [
    "analysing",
    "app",
    "benching",
    "calibrating",
    "call",
    "deploying",
    "inspecting",
    "main",
    "reproducing",
    "running",
]
