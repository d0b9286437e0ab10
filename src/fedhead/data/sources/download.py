"""Downloads of data sets: standard archives, checked by md5 and unpacked in the data folder."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedhead.core.system.errors import BadInput, first_line, require


class Remote(NamedTuple):
    """File to download."""

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        """File name."""
        return self.url.rsplit("/", 1)[1]


def missing(dataset: str, files: Sequence[str], root: Path, source: str, why: str) -> BadInput:
    """Return the error for files that are missing and can't be downloaded."""
    return BadInput(
        f"{dataset}: {', '.join(files)} not found in {root}, and {why}; fetch it from {source} and put it there, "
        "or name another folder with --data-dir or $FEDHEAD_DATA"
    )


def fetch(
    dataset: str, files: Sequence[str], remote: Remote, root: Path, download: bool, into: Path | None = None
) -> None:
    """Download an archive or a single file to the data folder and unpack it.

    Args:
        dataset: Name of the data set, for error messages.
        files: Missing files, for error messages.
        remote: File to download.
        root: Data folder.
        download: Whether downloads are allowed; if not, the archive must be in the folder.
        into: Folder to unpack to; `root` by default.

    Raises:
        BadInput: If the archive is missing, corrupt or can't be downloaded.
    """
    import pooch

    archive = root / remote.name
    if not archive.is_file():
        if not download:
            raise missing(dataset, files, root, remote.url, "downloads are off")
        try:
            known = None if remote.md5 is None else f"md5:{remote.md5}"
            pooch.retrieve(remote.url, known_hash=known, fname=remote.name, path=root, progressbar=False)
        except Exception as error:  # requests, urllib3 and pooch each have their own errors
            reason = first_line(error)[:120]
            raise missing(dataset, files, root, remote.url, f"the download failed ({reason})") from None
    require(
        remote.md5 is None or pooch.file_hash(archive, "md5") == remote.md5,
        f"{archive}: its checksum is not {remote.md5} as published; delete and fetch it again",
    )
    try:
        if archive.name.endswith(".tar.gz"):
            shutil.unpack_archive(archive, into or root, filter="data")  # refuses paths that lead out of the folder
        elif archive.suffix == ".zip":
            shutil.unpack_archive(archive, into or root)
    except (shutil.ReadError, tarfile.TarError, EOFError, OSError) as error:
        raise BadInput(f"{archive}: truncated or corrupt ({error}); delete it and fetch it again") from None
