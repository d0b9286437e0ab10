"""Schema of run folders: file names, version and readers.

Files are written atomically and checkpoints carry a digest, so reading only checks that a file can be parsed, that
accuracies, records of stages and costs of rounds are there, and that its folder has this schema version. A folder of
another schema is an error (`read_environment`).
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

SCHEMA = 5  # increase with every change of the file formats
CONFIG, ENVIRONMENT, SWEEP = "config.yaml", "environment.json", "sweep.yaml"
PARTITION, METRICS = "partition.npz", "metrics.jsonl"
CHECKPOINT, RESULT = "checkpoint.safetensors", "result.json"
STAGE_STATES, DIVERGED, INITIAL = "stages.safetensors", "diverged.json", "initial.safetensors"
CROSS_SITE = "cross_site.json"  # test results of every site's model at every site, beside a .csv of them
GLOBAL_MODEL = "(global)"  # name of the global model among the sites' models
FILES = (CONFIG, PARTITION, METRICS, CHECKPOINT, ENVIRONMENT, RESULT, STAGE_STATES, DIVERGED, INITIAL)
TABLE_LOCK = ".table.lock"  # in the folder of a table or a sweep
_RUN_AGAIN = "put the run's own file back, or delete its folder and run it again"


class DamagedRun(BadInput):
    """Error of a damaged run folder, which does not affect other runs."""


class OtherRecipe(BadInput):
    """Error of an intact run folder that has another recipe."""


def damaged(reason: object, fix: str = _RUN_AGAIN) -> DamagedRun:
    """Return the error for a damaged file, with a fix.

    Args:
        reason: Problem and file.
        fix: Suggested fix.
    """
    return DamagedRun(f"{reason}; {fix}")


@contextmanager
def damaged_if_bad(fix: str = _RUN_AGAIN) -> Iterator[None]:
    """Convert errors of reading a file to `DamagedRun`.

    Args:
        fix: Suggested fix if the file is missing, truncated or damaged. Errors in the content keep their own fix.
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
    """Return the JSON object of a file; None if the file is missing.

    Args:
        path: JSON file.
        fix: Suggested fix for the error.

    Raises:
        DamagedRun: If the file has other content.
    """
    if not path.exists():
        return None
    with damaged_if_bad(fix):
        return _parse(read_text(path), str(path))


def read_environment(folder: Path) -> dict[str, Any]:
    """Read the environment of a run.

    Raises:
        DamagedRun: If the file can't be read, or the folder has another schema.
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
    """Read the metrics of all rounds so far; line n has round n.

    A truncated last line is skipped.

    Raises:
        DamagedRun: If a line is not the record of its round, or lacks a number that is summed over rounds.
    """
    rows: list[dict[str, Any]] = []
    with damaged_if_bad():
        lines = read_text(path).split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], start=1):  # a complete line ends with a newline
        where = f"{path}, line {number}"
        with damaged_if_bad():
            row = _parse(line, where)
        if row.get("round") != number:
            raise damaged(
                f"{where} is of round {row.get('round')!r}, it must be of round {number}: the file was edited, or two "
                "processes wrote to it"
            )
        for entry in ("bytes_up", "bytes_down", "seconds"):
            if not isinstance(row.get(entry), int | float):
                raise damaged(f"{where} lacks {entry} as a number: the file was edited")
        rows.append(row)
    return rows


def finite(value: Any) -> Any:
    """Convert a value for JSON: non-finite numbers become null."""
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
