"""Drawing ahead: the batches of the next round are drawn on the host while a GPU trains this one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from fedhead import plan

Form = tuple[int, int, int, bool, int]  # the arguments of `plan.schedule`


class Ahead:
    """Schedules, some of them begun before anyone asks for them."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._begun: dict[Form, Future[plan.Schedule]] = {}

    def begin(self, forms: Iterable[Form]) -> None:
        """Start to draw these in the background."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._begun.update({form: self._worker.submit(plan.schedule, *form) for form in forms})

    def schedule(self, form: Form) -> plan.Schedule:
        """`plan.schedule`, at once if it was begun."""
        begun = self._begun.pop(form, None)
        return plan.schedule(*form) if begun is None else begun.result()
