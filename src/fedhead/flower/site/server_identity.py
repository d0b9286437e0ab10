"""Identity of the server for a site's ledger."""

from __future__ import annotations

import argparse
import hashlib
from contextlib import suppress
from pathlib import Path


def server_identity(pid: int) -> str:
    """Return the address of the SuperLink and the SHA-256 of the certificate authority that the SuperNode trusts.

    Flower tells neither to an app, so they are read from the command line of the SuperNode.

    Args:
        pid: Process of the SuperNode, or one that it started.

    Returns:
        An empty text without a SuperNode, or on a system without `/proc`.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--superlink", default="")
    parser.add_argument("--root-certificates", default="")
    parser.add_argument("--insecure", action="store_true")
    with suppress(OSError, ValueError, argparse.ArgumentError):
        while pid > 1:
            process = Path(f"/proc/{pid}")
            options, _ = parser.parse_known_args((process / "cmdline").read_text().split("\0"))
            if options.superlink and options.root_certificates:
                authority = (process / "cwd" / options.root_certificates).read_bytes()
                return f"{options.superlink} sha256:{hashlib.sha256(authority).hexdigest()}"
            if options.superlink:
                return f"{options.superlink} {'insecure' if options.insecure else 'system authorities'}"
            pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return ""
