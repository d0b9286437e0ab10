"""Messages of secure sums as text in the headers of requests and responses."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from fedhead.engine.policies.reply_check import Refused
from fedhead.privacy.secure_sum.session import Message


def pack(message: Message) -> dict[str, str]:
    """Serialize a message for JSON."""
    return {str(k): base64.b64encode(content).decode() for k, content in message.items()}


def unpack(packed: Mapping[str, str]) -> dict[int, bytes]:
    """Parse a message.

    Raises:
        Refused: If it is not one that `pack` wrote.
    """
    try:
        message = {int(k): base64.b64decode(content, validate=True) for k, content in packed.items()}
    except (ValueError, TypeError, binascii.Error) as error:
        raise Refused("its message of the secure sum can't be read") from error
    if any(not 0 <= k < 2**32 for k in message):
        raise Refused("its message of the secure sum names clients that there are not")
    return message
