"""Stand-ins for a GPU and its compiler: streams that wait for nobody, graphs that do their work anew at each replay."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fedhead.executors.stack import step_graphs


class Stream:
    """A stream that waits for nobody, as all happens in order."""

    def wait_stream(self, other: object) -> None:
        pass


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Do without a GPU; returns what is captured, in order."""
    made: list[object] = []

    def captured(work: Callable[[], None]) -> SimpleNamespace:
        made.append(work)
        return SimpleNamespace(replay=work)

    monkeypatch.setattr(step_graphs, "capture", captured)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


class HeldCompiler:
    """A compiler that is done when the test says so."""

    def __init__(self) -> None:
        self.made: list[Future[None]] = []

    def submit(self, *_: object) -> Future[None]:
        self.made.append(Future[None]())
        return self.made[-1]
