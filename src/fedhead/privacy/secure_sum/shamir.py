"""Shamir's secret sharing (1979): any `threshold` of the shares give a secret, fewer give nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297  # smallest prime above all secrets of 32 bytes
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Split a secret into one share per holder: values of a random polynomial whose value at 0 is the secret.

    Args:
        secret: 32 bytes.
        threshold: Number of shares that give the secret; the polynomial's degree plus 1.
        holders: Numbers of the holders, 0 or more; the share of k is the value at k + 1.
    """
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE)
    return shares


def weights(holders: Sequence[int]) -> list[int]:
    """Return the Lagrange weights at 0 of the holders' shares, which depend on the holders alone."""
    result = []
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above, below = above * (other + 1) % PRIME, below * (other - holder) % PRIME
        result.append(above * pow(below, -1, PRIME) % PRIME)
    return result


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly `threshold` shares; 32 zeros if they do not belong together.

    Args:
        shares: Shares by holder.
    """
    terms = zip(weights(list(shares)), shares.values(), strict=True)
    value = sum(weight * int.from_bytes(share) for weight, share in terms) % PRIME
    return value.to_bytes(SHARE)[1:] if value < 2 ** (8 * SECRET) else bytes(SECRET)
