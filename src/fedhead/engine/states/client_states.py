"""Client states: what each client keeps from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.core.tree.tree import Tree
from fedhead.engine.states.stacked_client_states import StackedClientStates


class ClientStates:
    """Client states by number; a client that never took part has its initial state, made when asked for."""

    shares_stacks: ClassVar[bool] = True  # whether states may be rows of a stack

    def __init__(self, initial: Callable[[int], Tree], kept: Mapping[int, Tree] | None = None):
        self._initial = initial
        self._kept = StackedClientStates(kept)

    @property
    def kept(self) -> StackedClientStates:
        """The states of the clients that took part."""
        return self._kept

    def __getitem__(self, client: int) -> Tree:
        return self._kept[client] if client in self._kept else self._initial(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        # A row of a stack would keep the whole stack alive: a state owns its memory.
        self._kept[client] = state.clone()

    def of(self, clients: Sequence[int]) -> Sequence[Tree]:
        """Return the states of clients; those that lie in one stack are not taken apart.

        Args:
            clients: The clients' numbers.
        """
        stacked = self._kept.stacked(clients)
        return [self[k] for k in clients] if stacked is None else stacked

    def keep(self, clients: Sequence[int], rows: StackedTrees) -> None:
        """Replace the states of clients that were trained in one stack.

        Args:
            clients: The clients' numbers.
            rows: What each keeps, as rows of the stack.
        """
        if self.shares_stacks and self._kept.keys() <= set(clients):
            self._kept.keep(clients, rows)
            return
        for client, state in zip(clients, rows, strict=True):
            self[client] = state

    def clear(self) -> None:
        """Let every client have its initial state again."""
        self._kept.clear()

    def copy(self) -> ClientStates:
        """Return the same states, to be written to without touching these."""
        other = ClientStates(self._initial)
        other._kept = self._kept.copy()
        return other
