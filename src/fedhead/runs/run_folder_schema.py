"""Names and schema version of a run folder's files, and their readers.

Files are written whole and checkpoints carry a digest, so reading checks that a file can be parsed and that its folder
is of this version's schema, nothing more. A folder of another schema is refused (`read_environment`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput, Unreadable
from fedhead.core.system.special_files import read_text

SCHEMA = 3  # raise it with every change of a run folder's files
CONFIG, ENVIRONMENT, SWEEP = "config.yaml", "environment.json", "sweep.yaml"
PARTITION, METRICS = "partition.npz", "metrics.jsonl"
CHECKPOINT, RESULT = "checkpoint.safetensors", "result.json"
STAGE_STATES, DIVERGED, INITIAL = "stages.safetensors", "diverged.json", "initial.safetensors"
FILES = (CONFIG, PARTITION, METRICS, CHECKPOINT, ENVIRONMENT, RESULT, STAGE_STATES, DIVERGED, INITIAL)
TABLE_LOCK = ".table.lock"  # in the folder of a table or a sweep
_RUN_AGAIN = "put the run's own file back, or delete its folder and run it again"


class DamagedRun(BadInput):
    """A run folder can't be used as it is; other runs don't fail for that."""


class OtherRecipe(BadInput):
    """A run folder is sound, but of another recipe than the one to be resumed in it."""


def damaged(reason: object, fix: str = _RUN_AGAIN) -> DamagedRun:
    """Return the error about a run folder's file, with what to do.

    Args:
        reason: What is wrong, and where.
        fix: What to do about it.
    """
    return DamagedRun(f"{reason}; {fix}")


@contextmanager
def damaged_if_bad(fix: str = _RUN_AGAIN) -> Iterator[None]:
    """Turn errors about a file that is being read into those of a damaged run.

    Args:
        fix: What to do where it is missing, cut or damaged. What is wrong in a file that can be read says so itself.
    """
    try:
        yield
    except DamagedRun:
        raise
    except Unreadable as error:
        raise damaged(error, fix) from error
    except BadInput as error:
        raise DamagedRun(error) from error


def read_object(path: Path, fix: str = _RUN_AGAIN) -> dict[str, Any] | None:
    """Return the JSON object of a file, None if there is no file.

    Args:
        path: The file.
        fix: What to do where it can't be read, for the error.

    Raises:
        DamagedRun: If the file holds something else.
    """
    if not path.exists():
        return None
    with damaged_if_bad(fix):
        return _parse(read_text(path), str(path))


def read_environment(folder: Path) -> dict[str, Any]:
    """Return the record of what a run ran on.

    Raises:
        DamagedRun: If it can't be read, or the folder is of another schema.
    """
    environment = read_object(folder / ENVIRONMENT)
    if environment is None:
        raise damaged(f"{folder / ENVIRONMENT} is missing")
    schema = environment.pop("schema", None)
    if schema != SCHEMA:
        raise DamagedRun(
            f"{folder} was written by another version of fedhead (schema {schema}, this one reads {SCHEMA}): run it "
            "again in another folder, or use that version"
        )
    return environment


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of all rounds so far, the metrics of round n from line n.

    A last line that a crash cut short is left out.

    Raises:
        DamagedRun: If a line is no record of its round.
    """
    rows: list[dict[str, Any]] = []
    with damaged_if_bad():
        lines = read_text(path).split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], start=1):  # a whole line ends in a newline
        where = f"{path}, line {number}"
        with damaged_if_bad():
            row = _parse(line, where)
        if row.get("round") != number:
            raise damaged(
                f"{where} is of round {row.get('round')!r}, it must be of round {number}: the file was edited, or two "
                "processes wrote to it"
            )
        rows.append(row)
    return rows


def finite(value: Any) -> Any:
    """Return the value as JSON can hold it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{where} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{where} can't be read: it holds no object")
    return value
