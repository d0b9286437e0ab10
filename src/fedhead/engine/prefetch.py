"""Prefetching: the batches of the next round are drawn on the host while a GPU trains this one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from fedhead.core import batching

DrawArguments = tuple[int, int, int, bool, int, int | None]  # the arguments of `batching.draw_batches`


class Prefetcher:
    """Draws the batches of clients, some of them in the background before they are needed."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[DrawArguments, Future[batching.BatchSchedule]] = {}

    def begin(self, draws: Iterable[DrawArguments]) -> None:
        """Start to draw these in the background."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._pending.update({arguments: self._worker.submit(batching.draw_batches, *arguments) for arguments in draws})

    def schedule(self, arguments: DrawArguments) -> batching.BatchSchedule:
        """`batching.draw_batches`, at once if it was begun."""
        pending = self._pending.pop(arguments, None)
        return batching.draw_batches(*arguments) if pending is None else pending.result()
