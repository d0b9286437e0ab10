"""A stand-in for Ray: tasks run in this process, one item after another, and some lose their worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """A worker is gone."""


class RayTaskError(RayError):
    """A task raised an error."""

    cause: BaseException | None = None


class Actor:
    """An object whose methods are called by `method.remote(…)`, here at once."""

    def __init__(self, held: Any):
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._held, name))


class Ray:
    """What the engines use of Ray, in this process.

    Args:
        lost: How many of the first tasks lose their worker after they have sent something.
        cpus: What the cluster has.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, lost: int = 0, cpus: float = 2):
        self.lost, self.cpus, self.begun, self.most = lost, cpus, 0, 0

    def remote(self, function: Callable[..., Iterator[Any]] | type) -> Any:
        if isinstance(function, type):
            return SimpleNamespace(options=lambda **resources: SimpleNamespace(remote=lambda: Actor(function())))

        def submit(*arguments: Any) -> Iterator[Any]:
            self.begun += 1
            return self.stream(function(*arguments), self.begun <= self.lost)

        return SimpleNamespace(options=lambda **resources: SimpleNamespace(remote=submit))

    @staticmethod
    def stream(sent: Iterator[Any], loses: bool) -> Iterator[Any]:
        for one in sent:
            yield one
            if loses:
                raise RayError

    def wait(self, streams: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(streams))
        return streams[:num_returns], streams[num_returns:]

    def __getattr__(self, name: str) -> Any:
        context = SimpleNamespace(get_job_id=lambda: "test")
        answers = {"is_initialized": True, "cluster_resources": {"CPU": self.cpus}, "get_runtime_context": context}
        return (lambda one: one) if name == "get" else lambda *_, **__: answers.get(name)
