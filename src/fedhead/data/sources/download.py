"""Downloads of data sets: standard archives, checked by md5 and unpacked in the data folder."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedhead.core.system.errors import BadInput, require


class Remote(NamedTuple):
    """A file to download."""

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def missing(dataset: str, files: Sequence[str], root: Path, source: str, why: str) -> BadInput:
    """Return the error for files that are neither present nor can be downloaded."""
    return BadInput(
        f"{dataset}: {', '.join(files)} not found in {root}, and {why}; fetch it from {source} and put it there, "
        "or name another folder with --data or $FEDHEAD_DATA"
    )


def fetch(
    dataset: str, files: Sequence[str], remote: Remote, root: Path, download: bool, into: Path | None = None
) -> None:
    """Download an archive or a single file to the data folder and unpack it.

    Args:
        dataset: Name of the data set, for error messages.
        files: The files that were looked for.
        remote: What to download.
        root: Data folder.
        download: Whether downloads are allowed; if not, the archive must be in the folder.
        into: Folder to unpack to; `root` by default.

    Raises:
        BadInput: If the archive is missing, corrupt or can't be downloaded.
    """
    archive = root / remote.name
    if not archive.is_file():
        if not download:
            raise missing(dataset, files, root, remote.url, "downloads are off")
        _download(dataset, files, remote, root)
    if remote.md5 is not None:
        with open(archive, "rb") as file:
            require(
                hashlib.file_digest(file, "md5").hexdigest() == remote.md5,
                f"{archive}: its checksum is not {remote.md5} as published; delete and fetch it again",
            )
    _unpack(archive, into or root)


def _download(dataset: str, files: Sequence[str], remote: Remote, root: Path) -> None:
    try:
        import pooch
    except ImportError:
        raise missing(dataset, files, root, remote.url, "pooch, which downloads, is not installed") from None
    try:
        root.mkdir(parents=True, exist_ok=True)
        known = f"md5:{remote.md5}" if remote.md5 else None
        pooch.retrieve(remote.url, known_hash=known, fname=remote.name, path=root, progressbar=False)
    except Exception as error:  # requests, urllib3 and pooch each have their own errors
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise missing(dataset, files, root, remote.url, f"the download failed ({reason})") from None


def _unpack(archive: Path, root: Path) -> None:
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(root, filter="data")  # refuses paths that lead out of the folder
        elif archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(root)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise BadInput(f"{archive}: truncated or corrupt ({error}); delete it and fetch it again") from None
