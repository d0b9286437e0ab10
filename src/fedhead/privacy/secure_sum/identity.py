"""Signatures by the registered keys of clients, so that the server can't replace a client's keys by its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    PrivateKey = EllipticCurvePrivateKey | Ed25519PrivateKey
    PublicKey = EllipticCurvePublicKey | Ed25519PublicKey


def new_keys(clients: Sequence[int]) -> dict[int, Ed25519PrivateKey]:
    """Return new private keys of clients in one process."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return {k: Ed25519PrivateKey.generate() for k in clients}


def require_cryptography() -> None:
    """Raise `BadInput` if the package `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise BadInput("secure_sum needs the package cryptography: pip install 'fedhead[privacy]'") from error


def sign(key: PrivateKey, message: bytes) -> bytes:
    """Sign a message by an ECDSA key, as sites have, or an Ed25519 key."""
    return key.sign(message, *_algorithm(key))


def is_signed(key: PublicKey, signature: bytes, message: bytes) -> bool:
    """Return whether a signature is that of the key's owner."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message, *_algorithm(key))
    except InvalidSignature:
        return False
    return True


def _algorithm(key: PrivateKey | PublicKey) -> tuple[Any, ...]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    curve = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA384()),) if curve else ()
