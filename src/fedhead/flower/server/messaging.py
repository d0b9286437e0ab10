"""Messaging: requests to nodes and their replies over a Flower grid, with a deadline and frequent polling."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedhead.core.system.errors import FedheadError
from fedhead.core.system.text import printable
from fedhead.core.system.version import VERSION
from fedhead.core.tree.tree import Tree
from fedhead.flower.backoff import Backoff
from fedhead.flower.wire import site_errors, wire
from fedhead.flower.wire.protocol import KINDS, Request, Response, read_response, to_json

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

SPARE_SECONDS = 60.0  # Flower's deadline is later than ours, so that ours applies
LONGEST_POLL = 1.0  # seconds


@dataclass(frozen=True)
class Failure:
    """Reason of a missing response, the site that reported it, its error code, and whether its node went offline."""

    reason: str
    site: str | None = None
    offline: bool = False
    problem: str | None = None

    def __post_init__(self) -> None:
        for name in ("reason", "site"):  # both may come from a site, which may send anything
            if getattr(self, name) is not None:
                object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def line(self) -> str:
        """Reason with the site's name, for the operator."""
        return f"site {self.site}: {self.reason}" if self.site else self.reason


Answer = tuple[Response, dict[str, Tree]]


@dataclass(frozen=True)
class Outgoing:
    """Request to a node, with its tensors."""

    node: int
    request: Request
    trees: Mapping[str, Tree] = field(default_factory=dict)
    expected: Mapping[str, Tree] = field(default_factory=dict)  # schema of the reply's trees


def ask(grid: Grid, poll: float, outgoing: Mapping[int, Outgoing], seconds: float) -> dict[int, Answer | Failure]:
    """Send messages and wait for the responses; return by key the response with its trees, or the failure.

    `Grid.send_and_receive` polls only every three seconds.

    Args:
        grid: Flower grid.
        poll: Seconds between two polls; longer after a while.
        outgoing: Messages by key.
        seconds: Deadline.
    """
    from flwr.app import Message

    if not outgoing:
        return {}
    messages = [
        Message(
            wire.pack(to_json(message.request), message.trees),
            message.node,
            KINDS[message.request.kind],
            ttl=seconds + SPARE_SECONDS,
            group_id=str(message.request.round),
        )
        for message in outgoing.values()
    ]
    answers: dict[int, Answer | Failure] = {}
    pending: dict[str, int] = {}
    for key, message_id in zip(outgoing, grid.push_messages(messages), strict=True):
        if message_id:
            pending[message_id] = key
        else:
            answers[key] = Failure("the message could not be sent")
    deadline, backoff = time.monotonic() + seconds, Backoff(poll)
    while pending and time.monotonic() < deadline:
        for reply in grid.pull_messages(list(pending)):
            # Flower's own errors come from no node: only the message id identifies the request.
            key_of = pending.pop(reply.metadata.reply_to_message_id, None)
            if key_of is not None:
                answers[key_of] = _read(reply, outgoing[key_of].expected)
        if pending:
            backoff.sleep(LONGEST_POLL)
    return answers | dict.fromkeys(pending.values(), Failure(f"no response within {seconds:g} s"))


def _read(reply: Message, expected: Mapping[str, Tree]) -> Answer | Failure:
    from flwr.common.constant import SUPERLINK_NODE_ID

    if reply.has_error():
        why = f"Flower says {reply.error.reason or 'nothing'} (code {reply.error.code})"
        # The SuperLink itself replies for an offline node.
        return Failure(why, offline=reply.metadata.src_node_id == SUPERLINK_NODE_ID)
    try:
        header, trees = wire.unpack(reply.content, expected)
        response = read_response(header)
    except FedheadError as error:
        return Failure(str(error))
    except Exception as error:  # an invalid reply must not end the run
        return Failure(f"its message can't be read ({type(error).__name__})")
    if response.problem is None:
        return response, trees
    why = site_errors.describe(response.problem, response.reference)
    if response.fedhead != VERSION:
        why += f"; it runs fedhead {printable(response.fedhead, 20)}, the server {VERSION}"
    return Failure(why, response.site, problem=response.problem)
