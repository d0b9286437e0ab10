"""Damaged and hostile variants of files, drawn from a seeded generator, and what a reader may answer to them."""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.engine.policies.reply_check import Refused

TOKENS = (
    *("null", "true", "-1", "0", "1e999", "NaN", "Infinity", "9" * 400, "1.5", '"x"', "[]", "{}", "[[[[]]]]"),
    *("!!python/object/apply:os.system [true]", "&a [*a]", "../../etc/passwd", "\u0000", "\u202e", "é"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, -0.0, 2**63, 10**400, 1.5),
    *("", "x", "../x", "a" * 5000, [], {}, [[]], [None], {"": None}),
)
LONGEST = 2100  # characters of a message
MEMORY = 64 << 20  # bytes that a reader may hold besides twenty times its file's size


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to three random changes: flipped bits, cuts, insertions, numbers replaced."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_CHANGES)(bytearray(data), rng)
    return data


def _flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 4, 16)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _insert(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.randbytes(rng.choice((1, 2, 8, 64))), b"\n", b'"', b"\xff" * 8, b"\0" * 8, b"{[" * 9))
    return bytes(data)


def _remove(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 64))]
    return bytes(data)


def _repeat(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.choice((1, 8, 64, 512))] * rng.choice((1, 2, 20))
    return bytes(data)


def _extreme(data: bytearray, rng: random.Random) -> bytes:
    """Replace bytes that may be a size or an offset by the least and the largest of them."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data) + 1)
    value = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    data[at : at + width] = bytes([value]) * width
    return bytes(data)


def _token(data: bytearray, rng: random.Random) -> bytes:
    """Replace a word or number of a text by one that is unlikely there."""
    words = list(re.finditer(rb"[\w.+-]+", bytes(data[:20_000])))
    if not words:
        return bytes(data)
    word = rng.choice(words)
    data[word.start() : word.end()] = rng.choice(TOKENS).encode()
    return bytes(data)


def _line(data: bytearray, rng: random.Random) -> bytes:
    """Drop, double or swap lines."""
    lines = bytes(data).splitlines(keepends=True)
    if len(lines) < 2:
        return bytes(data)
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    rng.choice((lambda: lines.pop(a), lambda: lines.insert(b, lines[a]), lambda: lines.__setitem__(a, lines[b])))()
    return b"".join(lines)


_CHANGES: tuple[Callable[[bytearray, random.Random], bytes], ...] = (
    *(_flip, _flip, _cut, _insert, _remove, _repeat, _extreme, _token, _line),
)


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one node replaced, removed, doubled or renamed."""
    value = json.loads(json.dumps(value))
    nodes: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        for key in inner if isinstance(inner, dict) else range(len(inner)):
            nodes.append((inner, key))
            if isinstance(inner[key], dict | list):
                collect(inner[key])

    if isinstance(value, dict | list):
        collect(value)
    if not nodes:
        return rng.choice(VALUES)
    parent, key = rng.choice(nodes)
    change = rng.randrange(4)
    if change == 0:
        del parent[key]
    elif change == 1 and isinstance(parent, dict):
        parent[rng.choice(("", "x", f"{key}é", "a" * 300))] = parent.pop(key)
    elif change == 2 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), parent[key])
    else:
        parent[key] = rng.choice(VALUES)
    return value


# -- what a reader may do ---------------------------------------------------------------------------------
@dataclass
class Outcome:
    """Results of many readings."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.read + self.refused + len(self.wrong)

    def __str__(self) -> str:
        return f"{self.tried:,} tried: {self.read:,} read, {self.refused:,} refused, slowest {self.slowest:.2f} s"


_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "socket.connect",
    "ctypes.dlopen",
)
_watched: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in _FORBIDDEN:
        _watched[-1].append(event)


@contextmanager
def watched() -> Any:
    """Collect the programs, connections and libraries that a reader opens: it may not open any."""
    if not hasattr(sys, "_fedhead_faults_audit"):
        sys.addaudithook(_audit)
        sys._fedhead_faults_audit = True  # type: ignore[attr-defined]  # a hook can't be removed, so it is added once
    seen: list[str] = []
    _watched.append(seen)
    try:
        yield seen
    finally:
        _watched.pop()


def attack(read: Callable[[], Any], most: int, outcome: Outcome, what: Callable[[], str], trace: bool = False) -> None:
    """Read once, and note what came of it: a value, a refusal in one line, or something that must not be."""
    if trace:
        tracemalloc.start()
    begin, said, refused = time.perf_counter(), "", False
    with watched() as seen:
        try:
            read()
        except (BadInput, Refused) as error:
            refused, text = True, str(error)
            if "\n" in text or len(text) > LONGEST:
                said = f"a message of {len(text)} characters, {text.count(chr(10))} line breaks: {text[:200]!r}"
        except Exception as error:  # whatever a reader raises, it is what is looked for here
            said = f"{type(error).__name__}: {str(error)[:300]}"
    outcome.slowest = max(outcome.slowest, time.perf_counter() - begin)
    if trace:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > most:
            said = said or f"it took {peak:,} bytes, {most:,} are enough"
    if seen:
        said = said or f"it opened {seen}"
    if said:
        outcome.wrong.append(f"{said} <- {what()}")
    elif refused:
        outcome.refused += 1
    else:
        outcome.read += 1


@contextmanager
def limited_memory(room: int = 2 << 30) -> Any:
    """Let this process have so much more memory than it has, so that a reader which asks for more fails, not others."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def resident() -> int:
    """Return the most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
