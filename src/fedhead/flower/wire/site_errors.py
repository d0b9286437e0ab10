"""Errors of sites for the server: a code and a reference number, never free text.

The text of an error may quote the site's data, such as a patient's name, a label or a path. It stays in the site's log,
under the reference number that the server logs too.
"""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedhead.core.system.errors import BadInput, Diverged, FedheadError
from fedhead.core.system.text import printable

TEXTS = {
    "version": "it runs another version of fedhead",
    "request": "it can't read the request",
    "name": "its name is not among the server's sites",
    "settings": "its site.yaml can't be read",
    "code": "the run names code that its site.yaml does not allow, or that differs from the server's",
    "policy": "its site.yaml does not allow this run's method, stages, model, data set or statistics",
    "budget": "the run would exceed its max_releases or max_epsilon, or repeat a private release",
    "consent": "share_model in its site.yaml is false",
    "left-out": "the run leaves it out of the training: it only tests",
    "memory": "it has not enough memory for the request, or may not have more",
    "schema": "its site.yaml has not accepted the run's schema of tables",
    "data": "its data can't be used for this run",
    "no-samples": "it holds no training samples",
    "setup": "it can't set up the run's method, stages or model",
    "tensors": "the server's tensors don't fit its model",
    "state": "its stored state can't be read",
    "secure": "it can't take part in the secure sum",
    "frozen": "it has lost the frozen parameters, which are sent again with the next request",
    "disk": "it can't write its state or its ledger",
    "diverged": "its numbers are not finite any more; a smaller learning rate (lr) is the usual fix",
    "error": "an unexpected error",
}


class SiteProblem(BadInput):
    """Error at a site; only its code is sent to the server.

    Args:
        code: One of `TEXTS`.
        text: Error text for the site's log.
    """

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


@contextmanager
def coded(code: str) -> Iterator[None]:
    """Assign a code to errors of the block that have no code yet."""
    try:
        yield
    except SiteProblem:
        raise
    except FedheadError as error:
        raise SiteProblem(code, str(error)) from error


def record(site: str, error: Exception) -> tuple[str, str]:
    """Write an error into the site's log.

    Returns:
        The code and the reference number for the server.
    """
    code = _code(error)
    reference = secrets.token_hex(4)
    print(f"site {site}: problem {reference} ({code}): {error}", file=sys.stderr, flush=True)
    if not isinstance(error, FedheadError):
        traceback.print_exception(error)
    return (code if code in TEXTS else "error"), reference


def _code(error: BaseException) -> str:
    if isinstance(error, Diverged):
        return "diverged"
    # No import of torch: the ClientApp must start fast.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "CPUAllocator" in str(error):
        return "memory"
    return str(getattr(error, "code", "error"))


def describe(code: str, reference: str) -> str:
    """Format a site's error for the server's operator; the site may have sent anything."""
    text = TEXTS.get(code, "it reports a problem that this version of fedhead does not know")
    return f"{text} ({printable(code, 20)}, reference {printable(reference, 20)} in the site's own log)"
