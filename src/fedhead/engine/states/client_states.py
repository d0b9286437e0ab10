"""Client states: what each client keeps from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, TreeRows
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

    def of(self, clients: Sequence[int]) -> TreeRows:
        """Return the states of clients; those that lie in one stack are not taken apart.

        Args:
            clients: The clients' numbers.
        """
        return self._kept.stacked(clients) or TreeRows([self[k] for k in clients])

    def keep(self, clients: Sequence[int], kept: TreeRows) -> None:
        """Replace the states of clients; rows of one stack are not taken apart where they replace all states.

        Args:
            clients: The clients' numbers.
            kept: What each keeps.
        """
        stays_whole = self.shares_stacks and self._kept.keys() <= set(clients)
        if stays_whole and isinstance(kept, StackedTrees) and kept.is_whole:
            self._kept.keep(clients, kept)
            return
        for client, state in zip(clients, kept, strict=True):
            self[client] = state

    def clear(self) -> None:
        """Let every client have its initial state again."""
        self._kept.clear()

    def copy(self) -> ClientStates:
        """Return the same states, to be written to without touching these."""
        other = ClientStates(self._initial)
        other._kept = self._kept.copy()
        return other
