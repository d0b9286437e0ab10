"""Ledger of a deployment: one line of JSON per request, at each site and, as its counterpart, at the server.

A site's ledger is `ledger.jsonl` in its `state` folder, the server's in the run folder. Both describe requests and
replies by the same functions, so that they can be compared line by line.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from fedhead.core.tree.tree import Tree
    from fedhead.flower.wire.protocol import Request, Response

LEDGER = "ledger.jsonl"
ROTATE_BYTES = 16 * 2**20  # a longer file is renamed before the next line


@dataclass(frozen=True)
class Ledger:
    """Append-only file of JSON lines; rotated files are `ledger-0001.jsonl` and so on, and are never deleted.

    Args:
        path: Current file.
    """

    path: Path

    @classmethod
    def find(cls, path: Path) -> Ledger:
        """Return the ledger at a path: a ledger file, a run folder, or the folder of a site or of its state.

        Raises:
            BadInput: If the path has no ledger.
        """
        for place in (path, path / LEDGER, path / "state" / LEDGER):
            if place.is_file():
                return cls(place)
        raise BadInput(f"{path} has no {LEDGER}: give a site's folder, its 'state' folder, or a server's run folder")

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Append one line per entry and flush them to disk; on an error the file stays as it was.

        Raises:
            OSError: If the file can't be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > ROTATE_BYTES:
            last = int(self._rotated()[-1].stem.rpartition("-")[2]) if self._rotated() else 0
            self.path.rename(self.path.with_name(f"{self.path.stem}-{last + 1:04}.jsonl"))
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = "".join(json.dumps({"time": now, **entry}) + "\n" for entry in entries).encode()
        with self.path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":  # cut off by the end of a process
                lines = b"\n" + lines
            try:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file)
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield all entries, from the oldest file on; a line that a killed process has cut off is skipped.

        Raises:
            BadInput: If a line is damaged.
        """
        for path in self.files():
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    if line.endswith(b"}"):
                        raise BadInput(f"{path}, line {number} is damaged: restore the ledger from a backup") from error

    def files(self) -> list[Path]:
        """Return the existing files, oldest first."""
        return [*self._rotated(), *([self.path] if self.path.exists() else [])]

    def _rotated(self) -> list[Path]:
        return sorted(self.path.parent.glob(f"{self.path.stem}-[0-9]*[0-9].jsonl"))


def compare_ledgers(
    site: Sequence[dict[str, Any]], server: Sequence[dict[str, Any]]
) -> tuple[int, list[dict[str, Any]]]:
    """Compare the ledger of a site with that of the server, for the runs in the server's.

    Args:
        site: Entries of the site.
        server: Entries of the server.

    Returns:
        The number of replies that both have, and the entries of replies that one side has differently or lacks.
    """
    names, runs = {entry["site"] for entry in site}, {entry["run"] for entry in server}
    sides = [
        _by_content(entry for entry in site if entry["decision"] == "sent" and entry["run"] in runs),
        _by_content(entry for entry in server if entry["decision"] == "received" and entry["site"] in names),
    ]
    both = sides[0].keys() & sides[1].keys()
    return len(both), [entry for side in sides for key, entry in side.items() if key not in both]


def _by_content(entries: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return replies by what both sides record of them, as JSON, and the number of equal replies up to this one."""
    local, counts = {"time", "server", "node", "release", "privacy", "decision"}, Counter[str]()
    replies = dict[tuple[str, int], dict[str, Any]]()
    for entry in entries:
        key = json.dumps({name: value for name, value in entry.items() if name not in local}, sort_keys=True)
        counts[key] += 1
        replies[key, counts[key]] = entry
    return replies


def describe_request(request: Request, trees: Mapping[str, Tree]) -> dict[str, Any]:
    """Return the entries about a request: its kind, its run with the recipe's keys, and the server's tensors."""
    recipe = {key: value for key, value in request.spec.recipe.items() if value not in (None, [])}
    asked = {name: value for name, value in vars(request).items() if name not in ("spec", "seconds")}
    if request.secure is not None:
        messages = request.secure.messages
        asked["secure"] = {"id": request.secure.id, "step": request.secure.step, "messages": len(messages)}
    return {
        **asked,
        "run": request.spec.experiment,
        "spec": request.spec.digest,
        "recipe": recipe,
        "asked": describe_trees(trees),
    }


def describe_response(response: Response, trees: Mapping[str, Tree]) -> dict[str, Any]:
    """Return the entries about a reply: its tensors, and its numbers that are set."""
    names = {field.name for field in fields(response)} - {"site", "fedhead", "experiment", "round", "algorithm"}
    numbers = {name: value for name in sorted(names) if (value := getattr(response, name)) not in (None, "", [], {})}
    if response.secure:
        numbers["secure"] = f"{len(response.secure)} messages"
    return {"sent": describe_trees(trees), "numbers": numbers}


def describe_trees(trees: Mapping[str, Tree]) -> dict[str, Any]:
    """Return shapes of tensors, bytes and a digest of each tree."""
    from fedhead.core.tree.digest import digest_of  # imported here, so that ledgers are read without torch

    return {
        name: {
            "bytes": tree.nbytes,
            "digest": digest_of(tree.leaves(), 16),
            "tensors": {leaf: list(t.shape) for leaf, t in tree.leaves().items()},
        }
        for name, tree in trees.items()
    }
