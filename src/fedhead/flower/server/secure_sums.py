"""Steps of secure sums as requests to sites, and the sites' answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedhead.core.system.errors import FedheadError
from fedhead.engine.policies.reply_check import Refused
from fedhead.flower.server.messaging import Answer
from fedhead.flower.wire import secure_messages
from fedhead.flower.wire.protocol import Request, SecureRequest, SecureStepName
from fedhead.privacy.secure_sum.session import Message, Session


def with_step(request: Request, session: Session, step: SecureStepName, message: Message) -> Request:
    """Return a request for a step of a secure sum."""
    secure = SecureRequest(session.id.hex(), step, list(session.clients), secure_messages.pack(message))
    return replace(request, secure=secure)


def read_answers(
    step: SecureStepName, answers: Mapping[int, Answer], refused: Mapping[int, str]
) -> tuple[dict[int, Message], dict[int, FedheadError]]:
    """Return the messages of the sites, and the errors of sites without a valid one."""
    messages: dict[int, Message] = {}
    faults: dict[int, FedheadError] = {k: Refused(why) for k, why in refused.items()}
    for k, (response, _) in answers.items():
        try:
            message = secure_messages.unpack(response.secure)
            if step == "advertise" and k not in message:
                raise Refused("it advertises no keys")
        except Refused as error:
            faults[k] = error
            continue
        messages[k] = message
    return messages, faults
