"""The task of clients of several runs: hooks see what their runs have in common, and nothing that is of one run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from fedhead.algorithm.task import Task

OF_ONE_RUN = ("seed", "sizes", "pool")  # entries in which runs may differ that train in one stack


class ReadsTask(Exception):
    """A hook has read an entry of the task that is another one in each run; its name is the message."""


class JointTask(Task):
    """A task without the entries that are of one run."""

    def __getattribute__(self, name: str) -> Any:
        """Return an entry.

        Raises:
            ReadsTask: It is of one run.
        """
        if name in OF_ONE_RUN:
            raise ReadsTask(name)
        return super().__getattribute__(name)


def joint_task(tasks: Sequence[Task]) -> Task:
    """Return the task of clients that train in one stack: the first one, where no entry is of one run only.

    Args:
        tasks: The tasks of their runs.
    """
    first = tasks[0]
    if all((task.seed, task.sizes) == (first.seed, first.sizes) and task.pool is first.pool for task in tasks):
        return first
    joint = copy.copy(first)
    object.__setattr__(joint, "__class__", JointTask)
    return joint
