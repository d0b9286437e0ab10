"""The clients' memory: what each client keeps from one round to the next."""

from __future__ import annotations

from collections.abc import Callable

from fedhead.core.tree import Tree


class ClientStates:
    """Client states by number; a client that never took part has its initial state, made when asked for."""

    def __init__(self, initial: Callable[[int], Tree], states: dict[int, Tree] | None = None):
        self._initial = initial
        self.states = dict(states or {})

    def __getitem__(self, client: int) -> Tree:
        return self.states[client] if client in self.states else self._initial(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        # A row of a stack would keep the whole stack alive: a state owns its memory.
        self.states[client] = state.clone()

    def copy(self) -> ClientStates:
        """The same memory, to be written to without touching this one."""
        return ClientStates(self._initial, self.states)
