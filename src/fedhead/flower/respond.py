"""From a Flower message to a Flower message: unpack, carry out within the time, pack, and only then store."""

from __future__ import annotations

import faulthandler
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedhead.core.errors import FedheadError
from fedhead.flower import wire
from fedhead.flower.protocol import Response, read_request, to_json, version
from fedhead.flower.site import Site

if TYPE_CHECKING:
    from flwr.app import RecordDict


def respond(content: RecordDict, site: Site, watchdog: bool) -> RecordDict:
    """The site's reply to a message's content; what goes wrong is told in full here, to the server in one line."""
    header: dict[str, object] = {}
    try:
        header, trees = wire.unpack(content)
        request = read_request(header)
        with _within(request.seconds if watchdog else None):
            response, send, commit = site.handle(request, trees)
            packed = wire.pack(to_json(response), send)
            commit()
            return packed
    except FedheadError as error:
        print(f"site {site.name}: {error}", file=sys.stderr, flush=True)
        return _problem(site, header, str(error))
    except Exception as error:  # whatever it is, the others must go on, and the server learn of it
        traceback.print_exc()
        # the text of a foreign error may quote data, which must not leave the site
        return _problem(site, header, f"{type(error).__name__} at the site; its own log has the details")


def _problem(site: Site, header: dict[str, object], problem: str) -> RecordDict:
    spec = header.get("spec")
    experiment = spec.get("experiment", "") if isinstance(spec, dict) else ""
    number, algorithm = header.get("round"), header.get("algorithm")
    response = Response(
        site=site.name,
        fedhead=version(),
        experiment=str(experiment),
        round=number if isinstance(number, int) else 0,
        algorithm=str(algorithm),
        problem=problem,
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
