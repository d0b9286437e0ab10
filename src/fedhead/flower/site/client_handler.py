"""Handler of Flower messages: unpack, compute within the deadline, pack, and only then store."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedhead.core.system.version import VERSION
from fedhead.flower import ledger
from fedhead.flower.site.site import Site
from fedhead.flower.site.site_store import unwritable
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Response, read_request, to_json
from fedhead.flower.wire.site_errors import SiteProblem, coded, record

if TYPE_CHECKING:
    from flwr.app import RecordDict


def respond(content: RecordDict, site: Site, watchdog: bool = True, server: str = "") -> RecordDict:
    """Return the site's reply to a message's content, after it is recorded in the site's ledger.

    Errors are written to the site's log; the server receives only a code and a reference number.

    Args:
        content: Content of the message.
        site: Site that replies.
        watchdog: Whether to end this process at the server's deadline.
        server: Identity of the server for the ledger.
    """
    header: dict[str, object] = {}
    entry: dict[str, object] = {"site": site.name, "server": server}
    try:
        with coded("request"):
            header, trees = wire.unpack(content)
            request = read_request(header)
            entry |= ledger.describe_request(request, trees)
        with _within(site.policy.seconds(request.seconds if watchdog else None)), site.policy.within_memory():
            handled = site.handle(request, trees)
            packed = wire.pack(to_json(handled.response), handled.trees)
            if handled.commit is not None:
                handled.commit()
        sent = ledger.describe_response(handled.response, handled.trees)
        released = {"release": handled.release, "privacy": dict(handled.privacy)}
        _record(site, entry | {"decision": "sent"} | sent | {name: value for name, value in released.items() if value})
        return packed
    except Exception as error:  # the run continues; the server receives a code
        code, reference = record(site.name, error)
        with suppress(SiteProblem):  # nothing of the data is sent, so the site can say that its disk is full
            _record(site, entry | {"decision": f"refused: {code}", "reference": reference})
        return _problem(site.name, header, code, reference)


def _record(site: Site, entry: Mapping[str, object]) -> None:
    """Write a line of the ledger; nothing leaves the site unrecorded."""
    try:
        site.ledger.append(entry)
    except OSError as error:
        raise unwritable(site.ledger.path, error) from error


def _problem(name: str, header: dict[str, object], code: str, reference: str) -> RecordDict:
    given = header.get("spec")
    spec = given if isinstance(given, dict) else {}
    listed = spec.get("sites")
    number, algorithm = header.get("round"), header.get("algorithm")
    response = Response(
        site=name if isinstance(listed, list) and name in listed else "",  # tell no server a name that it lacks
        fedhead=VERSION,
        experiment=str(spec.get("experiment", "")),
        round=number if isinstance(number, int) else 0,
        algorithm=str(algorithm),
        problem=code,
        reference=reference,
    )
    return wire.pack(to_json(response), {})


@contextmanager
def _within(seconds: float | None) -> Iterator[None]:
    """End this process at the deadline, to free the node for the next request."""
    if seconds is None:
        yield
        return
    # A timer in C fires even if Python hangs, and prints the traceback.
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # 2: stderr, even if sys.stderr is replaced
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
