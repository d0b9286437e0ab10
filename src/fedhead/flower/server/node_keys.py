"""Public keys of sites and nodes, which authenticate the names of sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.core.system.errors import BadInput, FedheadError

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def site_keys(folder: Path, sites: Sequence[str]) -> dict[str, bytes]:
    """Read the public key of each site from NAME.pub in a folder; empty if the folder is missing."""
    return {site: public_key(folder / f"{site}.pub") for site in sites} if folder.is_dir() else {}


def public_key(path: Path) -> bytes:
    """Read a public key in OpenSSH format and convert it to PEM, Flower's format.

    Raises:
        BadInput: If the file can't be read or is no public key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} is no public key of a site: write it with fedhead deploy certs") from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def node_keys(grid: Grid) -> dict[int, bytes]:
    """Return the public key of each connected node, by which the SuperLink authenticates its messages.

    Raises:
        FedheadError: If this version of Flower does not provide them.
    """
    nodes = getattr(grid, "get_nodes", None)  # only the grid of a deployment has keys
    if nodes is None:
        raise FedheadError("this grid does not provide the nodes' keys: use flwr 1.41, or run with insecure=true")
    return {node.node_id: node.public_key for node in nodes()}
