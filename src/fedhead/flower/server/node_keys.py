"""Keys of sites and of nodes: a site's name belongs to the public key that was registered for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.core.system.errors import BadInput, FedheadError

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def site_keys(folder: Path, sites: Sequence[str]) -> dict[str, bytes]:
    """Return the public key of each site from NAME.pub in a folder; nothing where there is no such folder."""
    return {site: public_key(folder / f"{site}.pub") for site in sites} if folder.is_dir() else {}


def public_key(path: Path) -> bytes:
    """Read a public key in OpenSSH's format, as the PEM that Flower keeps of a node.

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
    """Return the public key of each connected node, with which the SuperLink authenticates all that it sends.

    Raises:
        FedheadError: If this version of Flower does not provide them.
    """
    nodes = getattr(grid, "get_nodes", None)  # of the grid that a deployment has; a simulation's has no keys
    if nodes is None:
        raise FedheadError("this grid does not provide the nodes' keys: use flwr 1.41, or run with insecure=true")
    return {node.node_id: node.public_key for node in nodes()}
