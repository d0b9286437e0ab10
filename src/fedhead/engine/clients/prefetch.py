"""Prefetching: the next round's batches are drawn, and put into tables, on the host while a GPU trains this round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedhead.core.training import batching
from fedhead.core.training.batching import DrawArguments

T = TypeVar("T")

FEW = 1 << 14  # samples that are drawn at once, sooner than a thread would have taken over


class Prefetcher:
    """Draws the batches of clients, some of them in the background before they are needed."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[DrawArguments, tuple[Future[list[batching.BatchSchedule]], int]] = {}
        self._ready: dict[DrawArguments, batching.BatchSchedule] = {}

    def begin(self, draws: Sequence[DrawArguments]) -> bool:
        """Start to draw these in the background, few samples at once; return whether all of them are drawn."""
        wanted = [arguments for arguments in draws if arguments not in self._pending and arguments not in self._ready]
        if sum(arguments.n * arguments.epochs for arguments in wanted) <= FEW:
            self._ready.update(zip(wanted, batching.draw_all(wanted), strict=True))
        else:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
            drawing = self._worker.submit(batching.draw_all, wanted)
            self._pending.update({arguments: (drawing, place) for place, arguments in enumerate(wanted)})
        return not any(arguments in self._pending for arguments in draws)

    def forget(self, draws: Iterable[DrawArguments]) -> None:
        """Drop those of these batches that nobody has asked for."""
        for arguments in draws:
            self._pending.pop(arguments, None)
            self._ready.pop(arguments, None)

    def then(self, draws: Sequence[DrawArguments], work: Callable[[list[batching.BatchSchedule]], T]) -> Future[T]:
        """Apply a function in the background to batches that were begun before; they can still be asked for."""
        assert self._worker is not None, "what is drawn at once needs no thread"
        found = [self._pending[one] if one in self._pending else self._ready[one] for one in draws]

        def background() -> T:  # by the thread that has drawn them before, so that it does not wait
            return work([own if isinstance(own, batching.BatchSchedule) else own[0].result()[own[1]] for own in found])

        return self._worker.submit(background)

    def wait(self) -> None:
        """Wait until all that was begun is done."""
        if self._worker is not None:
            self._worker.submit(int).result()  # it comes after all else

    def schedules(self, draws: Sequence[DrawArguments]) -> list[batching.BatchSchedule]:
        """Return the batches of several clients; what was not begun before is drawn now."""
        known = {arguments: self._drawn(arguments) for arguments in draws}
        found = {arguments: batches for arguments, batches in known.items() if batches is not None}
        missing = [arguments for arguments in known if arguments not in found]
        found.update(zip(missing, batching.draw_all(missing), strict=True))
        return [found[arguments] for arguments in draws]

    def _drawn(self, arguments: DrawArguments) -> batching.BatchSchedule | None:
        if arguments in self._ready:
            return self._ready.pop(arguments)
        if arguments not in self._pending:
            return None
        drawing, place = self._pending.pop(arguments)
        return drawing.result()[place]
