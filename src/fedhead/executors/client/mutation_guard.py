"""What a client is given belongs to others as well: hooks that change it are refused.

The loop hands the same tensors to one client after another and to the next round, a stack hands out copies, and a CUDA
graph writes into static ones: a method that writes into them would train something else on each executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client, ClientInputs
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.mutation_check import Unchanged
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.hyperparameters import ROUND_LR

_KEEP = "let finish return what the client keeps, Reply(send=…, keep=client.state.replace(…))"


class MutationGuard:
    """Remembers what a client receives, holds and sees, to refuse hooks that have changed it.

    Args:
        algorithm: The method or stage.
        inputs: What the hooks of a client, or of a stack, see.
        w: The weights that are not trained, where a loss is given copies of those that were received.
    """

    def __init__(self, algorithm: Algorithm, inputs: ClientInputs, w: Weights | None = None):
        self._algorithm = algorithm
        if algorithm.is_built_in:
            self._before = Unchanged({})
            return
        given: dict[str, Tree | Tensor] = {
            "client.received": inputs.broadcast.replace(inputs.per_client),
            "client.state": inputs.state,
            "client.counts": inputs.counts,
            "client.steps": inputs.steps,
            "client.lr": inputs.hyperparameters.get(ROUND_LR, inputs.lr),
            "client.round": inputs.round,
            "batch.rows": inputs.rows,  # of client.total
            "batch.weight": inputs.mask,
        }
        if w is not None:
            given["w"] = w
        # numbers, of which mu *= 2 makes new ones; where runs are joined they are tensors, into which it would write
        given |= {_as_written(name): t for name, t in inputs.hyperparameters.items() if name != ROUND_LR}
        self._before = Unchanged(given)

    def check(self) -> None:
        """Raise `BadInput` if a tensor was written to."""
        if (changed := self._before.changed()) is not None:
            more = f", and {_KEEP}" if changed.startswith(("client.received", "client.state")) else ""
            raise BadInput(
                f"{self._algorithm.name} writes into {changed} in a client's hook, but it belongs to other clients, "
                f"batches or rounds as well: compute a new tensor{more}"
            )


def _as_written(hyperparameter: str) -> str:
    """A hyperparameter as a hook's code would write it."""
    part, _, path = hyperparameter.partition(".")
    return f"{'self' if part == 'algorithm' else f'client.task.{part}'}.{path}"


@contextmanager
def keeping_state(algorithm: Algorithm, client: Client) -> Iterator[None]:
    """Refuse entries that a hook puts into a client's state, of which it has a copy: no other hook would see them.

    Args:
        algorithm: The method or stage.
        client: What the hook, which is called in this context, sees.
    """
    yield
    if (entry := client.set_in_state()) is not None:
        raise BadInput(f"{algorithm.name} sets {entry} in start, loss or correct, where it is lost: {_KEEP}")
