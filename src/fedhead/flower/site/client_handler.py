"""Handler of Flower messages: unpack, compute within the deadline, pack, and only then store."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedhead.flower.site.site import Site
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Response, read_request, to_json, version
from fedhead.flower.wire.site_errors import coded, record

if TYPE_CHECKING:
    from flwr.app import RecordDict


def respond(content: RecordDict, site: Site, watchdog: bool = True) -> RecordDict:
    """Return the site's reply to a message's content.

    Errors are written to the site's log; the server receives only a code and a reference number.

    Args:
        content: Content of the message.
        site: Site that replies.
        watchdog: Whether to end this process at the server's deadline.
    """
    header: dict[str, object] = {}
    try:
        with coded("request"):
            header, trees = wire.unpack(content)
            request = read_request(header)
        with _within(site.policy.seconds(request.seconds if watchdog else None)), site.policy.within_memory():
            response, send, commit = site.handle(request, trees)
            packed = wire.pack(to_json(response), send)
            if commit is not None:
                commit()
            return packed
    except Exception as error:  # the run continues; the server receives a code
        return _problem(site.name, header, *record(site.name, error))


def _problem(name: str, header: dict[str, object], code: str, reference: str) -> RecordDict:
    given = header.get("spec")
    spec = given if isinstance(given, dict) else {}
    listed = spec.get("sites")
    number, algorithm = header.get("round"), header.get("algorithm")
    response = Response(
        site=name if isinstance(listed, list) and name in listed else "",  # unknown names stay here
        fedhead=version(),
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
