"""The order in which a stack takes clients: those with more steps first."""

from __future__ import annotations

from collections.abc import Sequence


def stack_order(steps: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """Return the places of clients in as few lists as it takes for steps never to grow, in any phase.

    One list is enough unless clients do different amounts of work in some phases but not in others.

    Args:
        steps: Each client's steps, one entry per phase.
        sizes: Each client's training samples.

    >>> stack_order([[1], [3], [2]], sizes=[4, 12, 8])
    [[1, 2, 0]]
    >>> stack_order([[1, 5], [3, 2]], sizes=[4, 12])
    [[0], [1]]
    """
    if all(mine == steps[0] for mine in steps):
        return [sorted(range(len(steps)), key=lambda k: -sizes[k])] if steps else []
    lists: list[list[int]] = []
    for k in sorted(range(len(steps)), key=lambda k: (-sum(steps[k]), -sizes[k], k)):
        fits = (own for own in lists if all(a >= b for a, b in zip(steps[own[-1]], steps[k], strict=True)))
        found = next(fits, None)
        if found is None:
            lists.append([k])
        else:
            found.append(k)
    return lists
