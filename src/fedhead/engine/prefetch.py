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
        self._pending: dict[DrawArguments, tuple[Future[list[batching.BatchSchedule]], int]] = {}

    def begin(self, draws: Iterable[DrawArguments]) -> None:
        """Start to draw these in the background."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        wanted = list(draws)
        drawing = self._worker.submit(lambda: [batching.draw_batches(*arguments) for arguments in wanted])
        self._pending.update({arguments: (drawing, place) for place, arguments in enumerate(wanted)})

    def schedule(self, arguments: DrawArguments) -> batching.BatchSchedule:
        """`batching.draw_batches`, at once if it was begun."""
        if arguments not in self._pending:
            return batching.draw_batches(*arguments)
        drawing, place = self._pending.pop(arguments)
        return drawing.result()[place]
