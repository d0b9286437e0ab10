"""Prefetching: the batches of the next round are drawn on the host while a GPU trains this one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from fedhead.core import batching

DrawArguments = tuple[int, int, int, bool, int, int | None]  # the arguments of `batching.draw_batches`
KEPT = 1 << 22  # samples of batches that are kept for other runs


class Prefetcher:
    """Draws the batches of clients, some of them in the background before they are needed.

    Args:
        keep: Whether batches are kept, the latest ones, for other runs that draw the same.
    """

    def __init__(self, keep: bool = False) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[DrawArguments, tuple[Future[list[batching.BatchSchedule]], int]] = {}
        self._keep = keep
        self._kept: dict[DrawArguments, batching.BatchSchedule] = {}
        self._samples = 0  # of the batches that are kept

    def begin(self, draws: Iterable[DrawArguments]) -> None:
        """Start to draw these in the background."""
        wanted = [arguments for arguments in draws if arguments not in self._pending and arguments not in self._kept]
        if not wanted:
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        drawing = self._worker.submit(lambda: [batching.draw_batches(*arguments) for arguments in wanted])
        self._pending.update({arguments: (drawing, place) for place, arguments in enumerate(wanted)})

    def schedule(self, arguments: DrawArguments) -> batching.BatchSchedule:
        """`batching.draw_batches`, at once if it was begun."""
        if arguments in self._kept:
            return self._kept[arguments]
        if arguments in self._pending:
            drawing, place = self._pending.pop(arguments)
            found = drawing.result()[place]
        else:
            found = batching.draw_batches(*arguments)
        if self._keep:
            self._kept[arguments] = found
            self._samples += found.positions.size
            while self._samples > KEPT:  # oldest first
                self._samples -= self._kept.pop(next(iter(self._kept))).positions.size
        return found
