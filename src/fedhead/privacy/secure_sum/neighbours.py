"""Neighbours of each client: the clients with which it shares masks, and which hold shares of its secrets."""

from __future__ import annotations

import hashlib
from functools import cached_property

from fedhead.privacy.secure_sum.session import Message, Session


class Neighbours:
    """Graph of the clients that have advertised keys; all parties compute the same from the adverts.

    With few clients, all are neighbours. Else the clients form a circle in random order, and each has the nearest ones
    on both sides (a Harary graph; Bell et al., 2020, Algorithm 2). The digest of all adverts decides the order.

    Args:
        session: The session.
        adverts: Adverts by client.
    """

    def __init__(self, session: Session, adverts: Message):
        self._session, self._adverts = session, adverts
        self._near = session.neighbours // 2  # on each side
        self.clients = adverts.keys()
        self.complete = len(adverts) <= 2 * self._near + 1

    @cached_property
    def digest(self) -> bytes:
        """Digest of all adverts."""
        each = (k.to_bytes(4) + hashlib.sha256(advert).digest() for k, advert in sorted(self._adverts.items()))
        return hashlib.sha256(self._session.id + b"".join(each)).digest()

    @cached_property
    def _circle(self) -> list[int]:
        return sorted(self._adverts, key=lambda k: hashlib.sha256(self.digest + k.to_bytes(4)).digest())

    @cached_property
    def _places(self) -> dict[int, int]:
        return {k: place for place, k in enumerate(self._circle)}

    def holders(self, client: int) -> list[int]:
        """Return the client and its neighbours, in ascending order."""
        if self.complete:
            return sorted(self._adverts)
        steps = range(-self._near, self._near + 1)
        return sorted(self._circle[(self._places[client] + step) % len(self._circle)] for step in steps)

    @property
    def needed(self) -> int:
        """Number of shares that give a secret.

        It is more than half of the holders. Each holder reveals one of a client's two secrets, so a server that tells
        clients different lists of dropouts can't get both. In a circle the share of dropouts differs between
        neighbourhoods, so the number is not higher.
        """
        return self._session.threshold if self.complete else self._near + 1
