"""Per-client states, stored stacked and unstacked lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

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
        self._shared: set[int] = set()  # clients whose tree is shared with the original of this copy

    def keep(self, clients: Sequence[int], rows: StackedTrees) -> None:
        """Replace all states by a stack; its memory is freed when the last of its states is replaced.

        Args:
            clients: Client numbers, including all clients that have a state.
            rows: Stacked state of each client.
        """
        self._states.update(zip(clients, range(len(clients)), strict=True))
        self._stack, self._in_stack = rows, len(clients)
        self._shared.clear()

    def stacked(self, clients: Sequence[int]) -> StackedTrees | None:
        """Return the states of clients as one stack, or None if some are not in the stack.

        Args:
            clients: Client numbers.
        """
        indices = [index for k in clients if isinstance(index := self._states.get(k), int)]
        return self._stack.take(indices) if self._stack is not None and len(indices) == len(clients) else None

    def copy(self) -> StackedClientStates:
        """Return a copy whose states and entries can be replaced independently.

        Tensors are shared: an in-place write changes both.
        """
        other = StackedClientStates()
        other._states, other._in_stack = dict(self._states), self._in_stack
        other._shared = {client for client, state in self._states.items() if not isinstance(state, int)}
        if self._stack is not None:
            other._stack = self._stack.take(range(len(self._stack)))  # with its own cache of unstacked trees
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return StackedClientStates, ({k: state.clone() for k, state in self.copy().items()},)

    def __getitem__(self, client: int) -> Tree:
        stored = self._states[client]
        if isinstance(stored, Tree):
            if client in self._shared:
                self[client] = stored = stored.copy()
            return stored
        if isinstance(stored, PackedTree):
            self[client] = state = stored.tree()
            return state
        assert self._stack is not None, "a state has an index in it"
        state = self._stack[stored]
        self[client] = state  # detach it from the stack, since the caller may change it
        return state

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
        """Remove a client's state from the stack and from the shared set."""
        self._shared.discard(client)
        self._in_stack -= isinstance(self._states.get(client), int)
        if not self._in_stack:
            self._stack = None
