"""Client of a secure sum: advertise keys, share secrets, send a masked vector, reveal shares.

The steps are those of Bonawitz et al. (2017), Figure 4, without the consistency check against active servers. A client
takes each step once; an error ends its part in the session.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from fedhead.privacy.secure_sum import identity, shamir
from fedhead.privacy.secure_sum.fixed_point import Vector
from fedhead.privacy.secure_sum.masks import ENCRYPTION, KEY, MASK, agreed_key, mask
from fedhead.privacy.secure_sum.neighbours import Neighbours
from fedhead.privacy.secure_sum.session import Advert, Message, SecureSumError, Session

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PrivateKey, PublicKey


class SecureSumClient:
    """State of one client in one session; it is never stored.

    Args:
        session: The session.
        client: Number of the client.
        key: Registered private key of the client.
        registered: Registered public keys of all clients, by number.
    """

    def __init__(self, session: Session, client: int, key: PrivateKey, registered: Mapping[int, PublicKey]):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.session, self.client = session, client
        self._key, self._registered = key, registered
        self._encryption, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(KEY)  # of the client's own mask
        self._adverts: dict[int, Advert] = {}
        self._shares: dict[int, bytes] = {}  # shares of the neighbours' secrets, by neighbour
        self._steps = ["advertise", "share", "mask", "unmask"]  # steps to come

    def advertise(self) -> bytes:
        """Return the client's public keys, signed."""
        self._begin("advertise")
        keys = (key.public_key().public_bytes_raw() for key in (self._encryption, self._masking))
        content = b"".join((*keys, hashlib.sha256(self._seed).digest()))
        return content + identity.sign(self._key, Advert.read(content).signed(self.session, self.client))

    def share(self, adverts: Message) -> dict[int, bytes]:
        """Return the encrypted shares of the client's two secrets, by neighbour.

        Args:
            adverts: Adverts of all clients, by number.

        Raises:
            SecureSumError: If there are too few adverts, or one is not signed by its client.
        """
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self._begin("share")
        self.session.check_enough(adverts, "have advertised keys")
        if not set(adverts) <= set(self.session.clients) or self.client not in adverts:
            raise SecureSumError("secure sum: the adverts are not those of the invited clients")
        self._neighbours = Neighbours(self.session, adverts)
        holders = self._neighbours.holders(self.client)
        self._adverts = {k: Advert.read(adverts[k]) for k in holders}
        for k, advert in self._adverts.items():
            if (why := advert.fault(self.session, k, self._registered)) is not None:
                raise SecureSumError(f"secure sum: {why}")
        refuse_repeated(self._adverts)
        private, needed = self._masking.private_bytes_raw(), self._neighbours.needed
        shares = [shamir.split(secret, needed, holders) for secret in (private, self._seed)]
        content = {k: shares[0][k] + shares[1][k] for k in holders}
        self._shares[self.client] = content.pop(self.client)
        peers = {k: advert.encryption for k, advert in self._adverts.items() if k != self.client}
        keys = {k: agreed_key(self._encryption, key, ENCRYPTION, self.session.id) for k, key in peers.items()}
        self._ciphers = {k: ChaCha20Poly1305(key) for k, key in keys.items()}
        return {
            k: self._ciphers[k].encrypt(_nonce(self.client, k), text, self._neighbours.digest)
            for k, text in content.items()
        }

    def mask(self, shares: Message, vector: Vector) -> Vector:
        """Return the vector plus the client's masks.

        Args:
            shares: Encrypted shares of the neighbours that have shared their secrets, by neighbour.
            vector: Encoded vector of the client.

        Raises:
            SecureSumError: If there are too few neighbours, or a share can't be decrypted.
        """
        from cryptography.exceptions import InvalidTag

        self._begin("mask")
        if len(shares) + 1 < self._neighbours.needed or not shares.keys() <= self._adverts.keys() - {self.client}:
            raise SecureSumError("secure sum: the shares are too few, or not those of the client's neighbours")
        for k, content in shares.items():
            try:  # proves that k is here in this session with these adverts: its keys can't be those of an earlier one
                nonce = _nonce(k, self.client)
                self._shares[k] = self._ciphers[k].decrypt(nonce, content, self._neighbours.digest)
            except InvalidTag:
                raise SecureSumError(f"secure sum: the shares of client {k} can't be decrypted") from None
        total = vector + mask(self._seed, len(vector))
        for k in sorted(shares):
            key = agreed_key(self._masking, self._adverts[k].masking, MASK, self.session.id)
            add_pair(total, self.client, k, mask(key, len(vector)))
        return total

    def unmask(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Return one share per neighbour: of its own mask's seed if its vector arrived, else of its masking key.

        Args:
            survivors: Clients whose masked vectors arrived.

        Raises:
            SecureSumError: If the list is too short, or is not one of this session.
        """
        self._begin("unmask")
        self.session.check_enough(set(survivors), "have sent vectors")
        # clients that have not shared their secrets would make a short list look long
        known = self._shares.keys() if self._neighbours.complete else self._neighbours.clients
        if self.client not in survivors or not set(survivors) <= known:
            raise SecureSumError("secure sum: the list of vectors is not one of this session")
        size = shamir.SHARE
        return {k: share[size:] if k in survivors else share[:size] for k, share in self._shares.items()}

    def _begin(self, step: str) -> None:
        """Refuse a step that is repeated or out of order, such as a second list of survivors."""
        if not self._steps or self._steps.pop(0) != step:
            self._steps.clear()
            raise SecureSumError(f"secure sum: client {self.client} refuses to {step}: each step is taken once")


def _nonce(sender: int, receiver: int) -> bytes:
    """Return the nonce of one direction: a pair's key encrypts one message in each."""
    return sender.to_bytes(4) + receiver.to_bytes(8)


def add_pair(total: Vector, client: int, other: int, pair: Vector) -> None:
    """Add the mask of a pair to the client's vector in place; that of the other client has the opposite sign."""
    if client < other:
        total += pair
    else:
        total -= pair


def refuse_repeated(adverts: Mapping[int, Advert]) -> None:
    """Raise `SecureSumError` if a client advertises another's key."""
    owners: dict[bytes, int] = {}
    for k, advert in adverts.items():
        for key in (advert.encryption, advert.masking):
            if owners.setdefault(key, k) != k:
                raise SecureSumError(f"secure sum: clients {owners[key]} and {k} advertise the same key")
