"""Client states: what each client keeps from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from fedhead.core.tree import Tree


class ClientStates:
    """Client states by number; a client that never took part has its initial state, made when asked for."""

    shares_stacks: ClassVar[bool] = True  # whether states may be rows of a stack

    def __init__(self, initial: Callable[[int], Tree], kept: Mapping[int, Tree] | None = None):
        self._initial = initial
        self._kept = dict(kept or {})

    @property
    def kept(self) -> dict[int, Tree]:
        """The states of the clients that took part."""
        return self._kept

    def __getitem__(self, client: int) -> Tree:
        return self._kept[client] if client in self._kept else self._initial(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        # A row of a stack would keep the whole stack alive: a state owns its memory.
        self._kept[client] = state.clone()

    def keep(self, clients: Sequence[int], rows: Sequence[Tree]) -> None:
        """Replace the states of clients that were trained in one stack.

        Args:
            clients: The clients' numbers.
            rows: What each keeps, as rows of the stack.
        """
        if self.shares_stacks and self._kept.keys() <= set(clients):
            # All states there are: the stack is kept alive by its rows until the last of them is replaced.
            self._kept.update(zip(clients, rows, strict=True))
            return
        for client, state in zip(clients, rows, strict=True):
            self[client] = state

    def copy(self) -> ClientStates:
        """Return the same states, to be written to without touching these."""
        return ClientStates(self._initial, self._kept)
