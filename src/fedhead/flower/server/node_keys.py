"""Public keys of sites and nodes, which authenticate the names of sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fedhead.core.system.errors import BadInput, FedheadError

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedhead.privacy.secure_sum.identity import PrivateKey, PublicKey


def site_keys(folder: Path, sites: Sequence[str]) -> dict[str, bytes]:
    """Read the public key of each site from NAME.pub in a folder; empty if the folder is missing."""
    return {site: public_key(folder / f"{site}.pub") for site in sites} if folder.is_dir() else {}


def public_key(path: Path) -> bytes:
    """Read a public key in OpenSSH format and convert it to PEM, Flower's format.

    Raises:
        BadInput: If the file can't be read or is no public key.
    """
    from cryptography.hazmat.primitives import serialization

    key: PublicKey = _read(path, "public")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def secure_sum_keys(
    key: Path, folder: Path, site: str, sites: Sequence[str]
) -> tuple[PrivateKey, dict[int, PublicKey]]:
    """Read a site's private key, and the public keys of all sites by client number.

    Args:
        key: File of the private key, in OpenSSH format.
        folder: Folder of the public keys, NAME.pub.
        site: Name of the site.
        sites: Names of all sites.

    Raises:
        BadInput: If a file can't be read, or the private key is not that of the site.
    """
    private: PrivateKey = _read(key, "private")
    public = {k: _read(folder / f"{name}.pub", "public") for k, name in enumerate(sites)}
    if public[list(sites).index(site)] != private.public_key():
        raise BadInput(f"{key} is not the private key of {folder / site}.pub: set 'key' and 'site_keys' in site.yaml")
    return private, public


def from_pem(key: bytes) -> PublicKey:
    """Return a public key in Flower's format as an object that verifies signatures."""
    from cryptography.hazmat.primitives import serialization

    return cast("PublicKey", serialization.load_pem_public_key(key))


def _read(path: Path, kind: Literal["public", "private"]) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        content = path.read_bytes()
        if kind == "public":
            return serialization.load_ssh_public_key(content)
        return serialization.load_ssh_private_key(content, None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} is no {kind} key of a site: write it with fedhead deploy certs") from error


def node_keys(grid: Grid) -> dict[int, bytes]:
    """Return the public key of each connected node, by which the SuperLink authenticates its messages.

    Raises:
        FedheadError: If this version of Flower does not provide them.
    """
    nodes = getattr(grid, "get_nodes", None)  # only the grid of a deployment has keys
    if nodes is None:
        raise FedheadError("this grid does not provide the nodes' keys: use flwr 1.41, or run with insecure=true")
    return {node.node_id: node.public_key for node in nodes()}
