"""Per-client states, stored stacked and unstacked lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from fedhead.core.tree.packing import PackedTree
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees


class StackedClientStates(MutableMapping[int, Tree]):
    """Client states, of which some may be rows of one stack, or packed until they are asked for.

    A round of all clients begins with the stack that the last one ended with: to take it apart and put it together
    again takes hundreds of operations, for which a GPU would wait.

    Args:
        states: States by client.
    """

    def __init__(self, states: Mapping[int, Tree] | None = None):
        self._states: dict[int, Tree | PackedTree | int] = dict(states or {})  # a state, or its place in the stack
        self._stack: StackedTrees | None = None
        self._in_stack = 0  # states
        self._shared: set[int] = set()  # clients whose state is the tree of what this is a copy of

    def keep(self, clients: Sequence[int], rows: StackedTrees) -> None:
        """Replace all states there are by rows of one stack, whose memory is held until the last of them is replaced.

        Args:
            clients: The clients' numbers, those of all states among them.
            rows: The state of each.
        """
        self._states.update(zip(clients, range(len(clients)), strict=True))
        self._stack, self._in_stack = rows, len(clients)
        self._shared.clear()

    def stacked(self, clients: Sequence[int]) -> StackedTrees | None:
        """Return the states of clients as they lie in one stack; None where they do not.

        Args:
            clients: The clients' numbers.
        """
        places = [place for k in clients if isinstance(place := self._states.get(k), int)]
        return self._stack.take(places) if self._stack is not None and len(places) == len(clients) else None

    def copy(self) -> StackedClientStates:
        """Return the same states, of which whole ones and entries may be replaced without touching these.

        The tensors are the same: to write into one of them would change both.
        """
        other = StackedClientStates()
        other._states, other._in_stack = dict(self._states), self._in_stack
        other._shared = {client for client, state in self._states.items() if not isinstance(state, int)}
        if self._stack is not None:
            other._stack = self._stack.take(range(len(self._stack)))  # single trees are its own
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return StackedClientStates, ({k: state.clone() for k, state in self.copy().items()},)

    def __getitem__(self, client: int) -> Tree:
        found = self._states[client]
        if isinstance(found, Tree):
            if client in self._shared:
                self[client] = found = found.copy()
            return found
        if isinstance(found, PackedTree):
            self[client] = state = found.tree()
            return state
        assert self._stack is not None, "a state has a place in it"
        state = self._stack[found]
        self[client] = state  # by itself from now on, since whoever asks for it may change it
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
        """Forget where a client's state lies."""
        self._shared.discard(client)
        self._in_stack -= isinstance(self._states.get(client), int)
        if not self._in_stack:
            self._stack = None
