"""Session of a secure sum: its members and thresholds, and the keys that they advertise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhead.core.system.errors import FedheadError
from fedhead.privacy.secure_sum.identity import is_signed
from fedhead.privacy.secure_sum.masks import KEY

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PublicKey

MIN_CLIENTS = 3  # clients in a sum: each of two would learn the other's vector from it
Message = Mapping[int, bytes]  # by the number of the client that it is about, from or for


class SecureSumError(FedheadError):
    """Failed or refused step of a secure sum; nothing is revealed."""


@dataclass(frozen=True)
class Session:
    """One secure sum.

    Args:
        id: Identity of the session, known to all parties.
        clients: Numbers of the invited clients.
        threshold: Smallest number of clients in the sum, more than half of the invited ones.
        neighbours: Largest number of other clients with which a client shares masks.
    """

    id: bytes
    clients: tuple[int, ...]
    threshold: int
    neighbours: int = 100

    def check_enough(self, clients: Collection[int], step: str) -> None:
        """Raise `SecureSumError` if fewer clients than the threshold have completed a step."""
        if len(clients) < self.threshold:
            count = f"{len(clients)} of {len(self.clients)} clients"
            raise SecureSumError(f"secure sum: {count} {step}, at least {self.threshold} are needed")


@dataclass(frozen=True)
class Advert:
    """Keys that a client advertises in a session, signed by its registered key."""

    encryption: bytes  # public key for shares
    masking: bytes  # public key for masks
    commitment: bytes  # SHA-256 of the seed of its own mask
    signature: bytes

    @classmethod
    def read(cls, content: bytes) -> Advert:
        """Split the bytes of an advert."""
        return cls(content[:KEY], content[KEY : 2 * KEY], content[2 * KEY : 3 * KEY], content[3 * KEY :])

    def fault(self, session: Session, client: int, registered: Mapping[int, PublicKey]) -> str | None:
        """Return why an advert is not that of its client; None if it is.

        Args:
            session: The session.
            client: Number of the client.
            registered: Registered public keys, by client.
        """
        if client not in registered:
            return f"client {client} has no registered key"
        if not is_signed(registered[client], self.signature, self.signed(session, client)):
            return f"the keys of client {client} are not signed by its registered key"
        return None

    def signed(self, session: Session, client: int) -> bytes:
        """Return the bytes that the client signs."""
        keys = self.encryption + self.masking + self.commitment
        return b"fedhead secure sum: keys" + session.id + client.to_bytes(4) + keys
