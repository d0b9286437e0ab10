"""The texts of a run folder, checked when they are read: whatever they hold, a run goes on from sound values or not.

Files may be cut, edited or copied together from several runs. What is read is therefore held against what a run
writes: JSON objects, numbers where numbers belong, and the metrics of round n on line n.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput, Unreadable
from fedhead.core.system.special_files import read_text

CONFIG, ENVIRONMENT, SWEEP = "config.yaml", "environment.json", "sweep.yaml"
TABLE_LOCK = ".table.lock"  # in the folder of a table or a sweep while a process writes the table's files
_TOTALS = ("bytes_up", "bytes_down", "seconds")  # every round and every result has them
_RUN_AGAIN = "put the run's own file back, or delete its folder and run it again"


class DamagedRun(BadInput):
    """A run folder can't be used as it is; other runs don't fail for that."""


class OtherRecipe(DamagedRun):
    """A run folder is sound, but of another recipe than the one that is to go on in it."""


def damaged(what: object, fix: str = _RUN_AGAIN) -> DamagedRun:
    """Return the error about a run folder's file, which says what to do.

    Args:
        what: What is wrong, and where.
        fix: What to do about it.
    """
    return DamagedRun(f"{what}; {fix}")


def no_record(run: Path) -> DamagedRun:
    """Return the error about a run folder that has lost its record of the objects that were given in Python."""
    return damaged(f"{run} has no {ENVIRONMENT}, which describes what the run was given in Python")


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
        return _object(read_text(path), str(path))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of all rounds so far, the metrics of round n from line n.

    A last line that a crash cut short is left out.

    Raises:
        DamagedRun: If a line is no record of its round.
    """
    rows: list[dict[str, Any]] = []
    lines = read_text(path).split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], start=1):  # a whole line ends in a newline
        where = f"{path}, line {number}"
        with damaged_if_bad():
            row = _object(line, where)
        if type(row.get("round")) is not int or row["round"] != number:
            raise damaged(
                f"{where} is of round {row.get('round')!r}, it must be of round {number}: the file was edited, or two "
                "processes wrote to it"
            )
        rows.append(check_record(row, where))
    return rows


def check_record(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the record of a round, a stage or a run, if the values that others compute with are of their kinds."""
    for name, fits in _KINDS.items():
        if name in row and not fits(row[name]):
            raise _damaged(where, f"{name} is {_short(row[name])}")
    return row


def check_totals(rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Refuse records that lack what is added up over a run."""
    for row in rows:
        for name in _TOTALS:
            if not _number(row.get(name)):
                raise _damaged(where, f"{name} is {_short(row.get(name))}")


def check_environment(found: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what a run was begun with, if the values that resuming needs are of their kinds."""
    for name in ("executor", "device", "precision", "compile", "experiment"):
        if name in found and not isinstance(found[name], str):
            raise _damaged(where, f"{name} is {_short(found[name])}")
    if "executor" in found and "threads" in found and not (type(found["threads"]) is int and found["threads"] >= 1):
        raise _damaged(where, f"threads is {_short(found['threads'])}")
    begun = found.get("compiled_from")
    if begun is not None and not (type(begun) is int and begun >= 1):
        raise _damaged(where, f"compiled_from is {_short(begun)}")
    objects, extended = found.get("objects", {}), found.get("extended", [])
    if not isinstance(objects, dict) or not all(isinstance(line, str) for line in objects.values()):
        raise _damaged(where, "objects is no list of names with what each is")
    if not isinstance(extended, list) or not isinstance(found.get("inputs", {}), dict):
        raise _damaged(where, "extended is no list, or inputs no list of names")
    components = found.get("components", [])
    if not isinstance(components, list) or not all(map(_component, components)):
        raise _damaged(where, "components is no list of names with where each comes from")
    return found


def round_of(metadata: Mapping[str, Any], path: Path) -> int:
    """Return the round of a checkpoint from its metadata.

    Raises:
        DamagedRun: If it names none.
    """
    number = metadata.get("round")
    if type(number) is not int or number < 0:
        raise damaged(f"{path} is no checkpoint of a run: it names no round")
    return number


def check_facts(metadata: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a checkpoint's metadata, if what callbacks remember and keep is of its kind.

    Raises:
        DamagedRun: If it is not.
    """
    number, kept = round_of(metadata, path), metadata.get("kept")
    memories = metadata.get("memories", [])
    right = isinstance(memories, list) and all(isinstance(memory, dict) for memory in memories)
    right = right and (kept is None or (type(kept) is int and 1 <= kept <= number))
    if not right or not isinstance(metadata.get("stopped"), str | None):
        raise damaged(f"{path} is damaged: what its callbacks remember can't be read")
    return metadata


def finite(value: Any) -> Any:
    """The value as JSON can hold it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _component(entry: Any) -> bool:
    texts = isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())
    return texts and {"kind", "name", "module"} <= entry.keys()


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{where} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise Unreadable(f"{where} can't be read: it holds {_short(found)}, not an object")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _damaged(where: str, what: str) -> DamagedRun:
    return damaged(f"{where} is damaged: {what}")


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]} …"


# -- the kinds of values --------------------------------------------------------------------------------
_LARGEST = 1e300  # beyond it, sums and means overflow


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _measured(value: Any) -> bool:
    return value is None or _number(value)


def _several(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_measured, value)))


def _by_name(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_measured, value.values())))


def _square(value: Any) -> bool:
    lines = isinstance(value, list) and all(isinstance(row, list) and len(row) == len(value) for row in value)
    return value is None or (lines and all(_number(one) for row in value for one in row))


def _stages(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(row, dict) and all(fits(row[name]) for name, fits in _KINDS.items() if name in row)
        for row in value.values()
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("lr", "accuracy", "accuracy_mean", "personal", "preparing", "compiled_from"), _measured),
    **dict.fromkeys(("train_loss", "test_loss", "personal_weighted", "personal_loss"), _measured),
    **dict.fromkeys(("participants", *_TOTALS), _number),
    **dict.fromkeys(("clients", "per_class", "client_test_loss"), _several),
    **dict.fromkeys(("metrics", "client_bytes", "steps", "client_train_loss", "personal_metrics"), _by_name),
    "confusion": _square,
    "stages": _stages,
}
