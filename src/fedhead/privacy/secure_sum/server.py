"""Server of a secure sum: passes messages on, adds masked vectors and removes the masks of the sum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedhead.privacy.secure_sum import shamir
from fedhead.privacy.secure_sum.client import add_pair, refuse_repeated
from fedhead.privacy.secure_sum.fixed_point import Vector
from fedhead.privacy.secure_sum.masks import MASK, agreed_key, is_public_key, mask
from fedhead.privacy.secure_sum.neighbours import Neighbours
from fedhead.privacy.secure_sum.session import Advert, Message, SecureSumError, Session

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PublicKey


class SecureSumServer:
    """State of the server in one session. Clients that miss a step drop out; the others go on.

    Args:
        session: The session.
        registered: Registered public keys of all clients, by number.
    """

    def __init__(self, session: Session, registered: Mapping[int, PublicKey]):
        self.session, self._registered = session, registered
        self._total: Vector = np.zeros(0, np.uint64)
        self._keys: dict[int, Advert] = {}
        self._shared: set[int] = set()
        self.survivors: list[int] = []  # clients whose vectors are in the sum
        self.liars: dict[int, str] = {}  # clients whose messages were wrong, and why

    def advertised(self, adverts: Message) -> dict[int, Message]:
        """Take the adverts and return the messages of the next step, by client.

        Raises:
            SecureSumError: If there are too few, or two clients advertise the same key.
        """
        keys = {k: Advert.read(content) for k, content in adverts.items()}
        faults = {k: advert.fault(self.session, k, self._registered) for k, advert in keys.items()}
        self.liars |= {k: why for k, why in faults.items() if why is not None}
        for k, advert in keys.items():
            if not all(map(is_public_key, (advert.encryption, advert.masking))):
                self.liars[k] = f"client {k} has invalid keys"
        self._keys = {k: advert for k, advert in keys.items() if k not in self.liars}
        self.session.check_enough(self._keys, f"have advertised keys{self._named()}")
        refuse_repeated(self._keys)
        valid = {k: adverts[k] for k in self._keys}
        self._neighbours = Neighbours(self.session, valid)
        return dict.fromkeys(valid, valid)

    def shared(self, shares: Mapping[int, Message]) -> dict[int, Message]:
        """Take the encrypted shares and return each client's incoming ones.

        Raises:
            SecureSumError: If too few clients have shared their secrets.
        """
        for k, content in shares.items():
            if content.keys() == set(self._neighbours.holders(k)) - {k}:
                self._shared.add(k)
            else:
                self.liars[k] = f"client {k} has not shared its secrets with all of its neighbours"
        self.session.check_enough(self._shared, f"have shared their secrets{self._named()}")
        return {k: {j: shares[j][k] for j in self._holders(k) if j != k} for k in sorted(self._shared)}

    def add(self, client: int, vector: Vector) -> None:
        """Add the masked vector of a client."""
        self._total = self._total + vector if self.survivors else vector
        self.survivors.append(client)

    def masked(self) -> list[int]:
        """Return the clients in the sum, for the last step.

        Raises:
            SecureSumError: If there are too few.
        """
        self.session.check_enough(self.survivors, "have sent vectors")
        return sorted(self.survivors)

    def unmasked(self, revealed: Mapping[int, Message]) -> Vector:
        """Return the sum of the survivors' vectors.

        Args:
            revealed: Revealed shares by client, each by the owner of the secret.

        Raises:
            SecureSumError: If a secret can't be recovered from the shares.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        for u in sorted(self._shared):
            shares = {k: revealed[k][u] for k in self._holders(u) if k in revealed and u in revealed[k]}
            if u in self.survivors:
                self._total -= mask(self._secret(u, shares, self._keys[u].commitment), len(self._total))
                continue
            private = X25519PrivateKey.from_private_bytes(self._secret(u, shares, None))
            for k in self._holders(u):
                if k in self.survivors:
                    key = agreed_key(private, self._keys[k].masking, MASK, self.session.id)
                    add_pair(self._total, u, k, mask(key, len(self._total)))
        return self._total

    def _named(self) -> str:
        return "".join(f" ({why})" for why in self.liars.values())

    def _holders(self, client: int) -> list[int]:
        return [k for k in self._neighbours.holders(client) if k in self._shared]

    def _secret(self, owner: int, shares: Message, commitment: bytes | None) -> bytes:
        """Recover a secret, without the shares of one holder if these are wrong."""
        needed = self._neighbours.needed
        valid = {k: share for k, share in shares.items() if len(share) == shamir.SHARE and k not in self.liars}
        for suspect in (None, *valid):
            chosen = [k for k in valid if k != suspect][:needed]
            if len(chosen) < needed:
                break
            secret = shamir.join({k: valid[k] for k in chosen})
            if self._fits(owner, secret, commitment):
                if suspect is not None:
                    self.liars[suspect] = f"client {suspect} revealed a wrong share of client {owner}'s secret"
                return secret
        raise SecureSumError(
            f"secure sum: {len(valid)} shares of client {owner}'s secret arrived, and {needed} that fit together are "
            "needed: too many clients have dropped out, or some revealed wrong shares"
        )

    def _fits(self, owner: int, secret: bytes, commitment: bytes | None) -> bool:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if commitment is not None:
            return hashlib.sha256(secret).digest() == commitment
        public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        return public == self._keys[owner].masking
