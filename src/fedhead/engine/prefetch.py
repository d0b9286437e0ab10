"""Drawing ahead: the batches of the next round are drawn on the host while a GPU trains this one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from fedhead.core import batching

Form = tuple[int, int, int, bool, int]  # the arguments of `batching.draw_batches`


class Prefetcher:
    """Schedules, some of them begun before anyone asks for them."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._begun: dict[Form, Future[batching.BatchSchedule]] = {}

    def begin(self, forms: Iterable[Form]) -> None:
        """Start to draw these in the background."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._begun.update({form: self._worker.submit(batching.draw_batches, *form) for form in forms})

    def schedule(self, form: Form) -> batching.BatchSchedule:
        """`batching.draw_batches`, at once if it was begun."""
        begun = self._begun.pop(form, None)
        return batching.draw_batches(*form) if begun is None else begun.result()
