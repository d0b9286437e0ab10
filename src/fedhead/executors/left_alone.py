"""What a client is given belongs to others as well: hooks that change it are refused.

The loop hands the same tensors to one client after another and to the next round, a stack hands out copies, and a CUDA
graph writes into static ones: a method that writes into them would train something else on each executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client, ClientInputs
from fedhead.core.errors import BadInput
from fedhead.core.unchanged import Unchanged


class GivenInputs:
    """Remembers what a client receives and holds, to refuse hooks that have changed it.

    Args:
        algorithm: The method or stage.
        inputs: What the hooks of a client, or of a stack, see.
    """

    def __init__(self, algorithm: Algorithm, inputs: ClientInputs):
        self._algorithm = algorithm
        received = inputs.broadcast.replace(inputs.per_client)
        self._before = Unchanged({"client.received": received, "client.state": inputs.state})

    def check(self) -> None:
        """Raise `BadInput` if a tensor was written to, or if a tree holds other ones."""
        _refuse(self._algorithm, self._before.changed())


@contextmanager
def keeping_state(algorithm: Algorithm, client: Client) -> Iterator[None]:
    """Refuse entries that a hook puts into a client's state: they would be lost in a stack, and shared in a loop.

    Args:
        algorithm: The method or stage.
        client: What the hook, which is called in this context, sees.
    """
    held = dict(client.state)
    yield
    now = client.state
    odd = (name for name in {**held, **now} if now.get(name) is not held.get(name))
    _refuse(algorithm, next((f"client.state[{name!r}]" for name in odd), None))


def _refuse(algorithm: Algorithm, changed: str | None) -> None:
    if changed is not None:
        raise BadInput(
            f"{algorithm.name} changes {changed} in a client's hook, but it belongs to other clients and later rounds "
            "as well: compute a new tensor, and let finish return what the client keeps, "
            "Reply(send=…, keep=client.state.replace(…))"
        )
