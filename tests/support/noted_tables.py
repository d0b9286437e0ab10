"""Notes of the stacks of a run whether their tables were made ahead."""

from __future__ import annotations

import pytest

from fedhead.executors.client.job import Job


def note_tables(patch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each stack, by whether it had tables."""
    used: list[bool] = []
    take = Job.take

    def noting(job: Job, places: list[int]) -> Job:
        part = take(job, places)
        used.append(part.tables is not None)
        return part

    patch.setattr(Job, "take", noting)
    return used
