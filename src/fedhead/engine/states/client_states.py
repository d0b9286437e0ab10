"""Storage of client states between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, TreeRows
from fedhead.engine.states.stacked_client_states import StackedClientStates


class ClientStates:
    """Client states by client number; clients that never took part have a lazily created initial state."""

    shares_stacks: ClassVar[bool] = True  # whether states may be rows of a stack

    def __init__(self, initial: Callable[[int], Tree], kept: Mapping[int, Tree] | None = None):
        self._initial = initial
        self._kept = StackedClientStates(kept)

    @property
    def kept(self) -> StackedClientStates:
        """States of the clients that took part."""
        return self._kept

    def __contains__(self, client: int) -> bool:
        """Return whether a client took part."""
        return client in self._kept

    def __getitem__(self, client: int) -> Tree:
        return self._kept[client] if client in self._kept else self._initial(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        # Clone, because a view of a stack would keep the whole stack in memory.
        self._kept[client] = state.clone()

    def of(self, clients: Sequence[int]) -> TreeRows:
        """Return the states of clients, without unstacking those of one stack.

        Args:
            clients: Client numbers.
        """
        return self._kept.stacked(clients) or TreeRows([self[k] for k in clients])

    def keep(self, clients: Sequence[int], kept: TreeRows) -> None:
        """Replace the states of clients; a stack that replaces all states stays stacked.

        Args:
            clients: Client numbers.
            kept: New state of each client.
        """
        replaces_all = self.shares_stacks and self._kept.keys() <= set(clients)
        if replaces_all and isinstance(kept, StackedTrees):
            self._kept.keep(clients, kept)
            return
        for client, state in zip(clients, kept, strict=True):
            self[client] = state

    def clear(self) -> None:
        """Reset every client to its initial state."""
        self._kept.clear()

    def copy(self) -> ClientStates:
        """Return a copy that can be modified independently."""
        other = ClientStates(self._initial)
        other._kept = self._kept.copy()
        return other
