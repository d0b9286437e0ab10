"""What a method's or stage's clients receive, send and keep, seen in a small federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

import fedhead as fh

MODEL = "mlp(hidden=[64])"


@dataclass(frozen=True)
class Wire:
    """Names of entries and how many numbers each has, for one client and one exchange."""

    received: Mapping[str, int]
    sent: Mapping[str, int]
    kept: Mapping[str, int]


class _Seen(Exception):
    """A client was about to send; the rest of the run is not needed."""

    def __init__(self, wire: Wire):
        super().__init__("seen")
        self.wire = wire


@dataclass(frozen=True)
class _Look(fh.Upload):
    """Ends the run with what the first client would send."""

    def encode(self, send: fh.Tree, client: fh.Client) -> fh.Tree:
        raise _Seen(Wire(*map(_sizes, (client.received, send, client.state))))


@cache
def _federation() -> fh.Federation:
    return fh.Federation.load(
        "digits", "iid", clients=2, subset=60, client_test=0.2, public="digits", public_samples=30
    )


def look(**arguments: Any) -> Wire:
    """Return what the first client of a run receives, sends and keeps.

    Args:
        **arguments: Arguments of `fedhead.run` besides federation and model.

    Returns:
        Names and sizes; nothing where clients send nothing.
    """
    try:
        fh.run(_federation(), MODEL, uploads=[_Look()], executor="loop", batch_size=8, local_steps=1, **arguments)
    except _Seen as seen:
        return seen.wire
    return Wire({}, {}, {})


def _sizes(entries: Mapping[str, Any]) -> dict[str, int]:
    return {name: _numbers(value) for name, value in entries.items()}


def _numbers(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else sum(map(_numbers, value.values()))
