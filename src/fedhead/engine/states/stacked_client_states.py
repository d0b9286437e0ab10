"""Per-client states, stored stacked and unstacked lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from fedhead.core.tree.packing import PackedTree
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees


class StackedClientStates(MutableMapping[int, Tree]):
    """Mapping of client states, some of them stored in one stack or packed, and unpacked lazily.

    With full participation, a round starts from the stack that the previous round returned. Unstacking and restacking
    it would take hundreds of operations and stall the GPU.

    Args:
        states: States by client.
    """

    def __init__(self, states: Mapping[int, Tree] | None = None):
        self._states: dict[int, Tree | PackedTree | int] = dict(states or {})  # a state, or its index in the stack
        self._stack: StackedTrees | None = None
        self._in_stack = 0  # number of states in the stack

    def keep(self, clients: Sequence[int], rows: StackedTrees) -> None:
        """Replace all states by a stack; its memory is freed when the last of its states is replaced.

        Args:
            clients: Client numbers, including all clients that have a state.
            rows: Stacked state of each client.
        """
        self._states.update(zip(clients, range(len(clients)), strict=True))
        self._stack, self._in_stack = rows, len(clients)

    def stacked(self, clients: Sequence[int]) -> StackedTrees | None:
        """Return the states of clients as one stack, or None if some are not in the stack.

        Args:
            clients: Client numbers.
        """
        indices = [index for k in clients if isinstance(index := self._states.get(k), int)]
        return self._stack.take(indices) if self._stack is not None and len(indices) == len(clients) else None

    def copy(self) -> StackedClientStates:
        """Return a copy whose states can be replaced independently; the trees are shared."""
        other = StackedClientStates()
        other._states, other._stack, other._in_stack = dict(self._states), self._stack, self._in_stack
        return other

    def __getitem__(self, client: int) -> Tree:
        stored = self._states[client]
        if isinstance(stored, PackedTree):
            self._states[client] = stored = stored.tree()
        if isinstance(stored, Tree):
            return stored
        assert self._stack is not None, "a state has an index in it"
        return self._stack[stored]

    def __setitem__(self, client: int, state: Tree | PackedTree) -> None:
        self._leave(client)
        self._states[client] = state

    def __delitem__(self, client: int) -> None:
        self._leave(client)
        del self._states[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, client: object) -> bool:
        return client in self._states

    def _leave(self, client: int) -> None:
        """Remove a client's state from the stack."""
        self._in_stack -= isinstance(self._states.get(client), int)
        if not self._in_stack:
            self._stack = None
