"""Atomic replacement of files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhead.core.system.errors import BadInput


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` on success, so that a crash leaves the old file or the new one.

    Permissions follow the umask. A folder or a device at `path` is refused (`BadInput`).

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, atomic(Path(folder) / "a") as draft:
    ...     _ = draft.write_text("hello")
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # never replace a device such as /dev/null
        raise BadInput(f"{path}: not a regular file; leave it out or give another one")
    draft = path.with_name(f".{path.name.lstrip('.')}.{secrets.token_hex(4)}{path.suffix}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode & 0o777
        os.close(descriptor)
        yield draft
        _flush(draft)
        draft.chmod(mode)  # a writer such as safetensors may have replaced the file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _flush(path.parent)  # the rename itself must reach the disk too


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
