"""Masks: vectors of pseudorandom numbers that two clients agree on, or that one client draws alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhead.privacy.secure_sum.fixed_point import Vector

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY = 32  # bytes of a key
ENCRYPTION, MASK = b"fedhead secure sum: shares", b"fedhead secure sum: mask"  # purposes of agreed keys


def agreed_key(private: X25519PrivateKey, public: bytes, purpose: bytes, session: bytes) -> bytes:
    """Return the key that two parties agree on by X25519 and HKDF-SHA256, for one purpose in one session."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), KEY, salt=session, info=purpose).derive(secret)


def is_public_key(public: bytes) -> bool:
    """Return whether a key can be agreed on with this public key; one of a client that lies may give none."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        return bool(agreed_key(X25519PrivateKey.generate(), public, MASK, b""))
    except ValueError:
        return False


def mask(key: bytes, length: int) -> Vector:
    """Return the ChaCha20 key stream as numbers modulo 2⁶⁴; every key is used once, so the nonce is zero."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, "<u8")
