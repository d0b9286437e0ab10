"""From a Flower message to a Flower message: unpack, compute within the time, pack, and only then store."""

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

    What goes wrong is written in full into the site's own log; the server gets a code and a reference number.

    Args:
        content: The message's content.
        site: The site that answers.
        watchdog: Whether to end this process when the server's time for the request is over.
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
    except Exception as error:  # whatever it is, the others must go on, and the server learn of it
        return _problem(site.name, header, *record(site.name, error))


def _problem(name: str, header: dict[str, object], code: str, reference: str) -> RecordDict:
    given = header.get("spec")
    spec = given if isinstance(given, dict) else {}
    listed = spec.get("sites")
    number, algorithm = header.get("round"), header.get("algorithm")
    response = Response(
        site=name if isinstance(listed, list) and name in listed else "",  # a name that the server does not know stays
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
    """End this process if the work takes longer, whatever it hangs in, to free the node for the next request."""
    if seconds is None:
        yield
        return
    # a timer in C: it goes off even where Python itself is stuck, and says where
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # 2: stderr itself, whatever sys.stderr is now
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
