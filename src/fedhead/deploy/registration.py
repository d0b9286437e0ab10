"""Registration of the sites' public keys at the SuperLink, which admits no other nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from fedhead.core.system.errors import FedheadError
from fedhead.flower.server.node_keys import public_key

OFFLINE_SECONDS = 90.0  # time limit for Flower to regard a killed node as offline, which takes it a minute


def register(address: str, authority: Path, keys: Mapping[str, Path]) -> list[str]:
    """Register public keys at a SuperLink, and wait until it accepts nodes with these keys.

    Known keys are not registered again. Flower refuses the key of a killed node while it regards the node as online.

    Args:
        address: Host and port of the SuperLink.
        authority: Certificate of the authority that issued the SuperLink's certificate.
        keys: Files of public keys in OpenSSH format, by site.

    Returns:
        The sites whose keys were new to the SuperLink.

    Raises:
        FedheadError: If the SuperLink can't be reached or refuses a key.
    """
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
    from flwr.supercore.constant import NodeStatus
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    wanted = {site: public_key(path) for site, path in keys.items()}
    client = ControlHttpClient.from_server_address(
        address, False, authority.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    )
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
        known = {node.public_key for node in nodes if node.status != NodeStatus.UNREGISTERED}
        fresh = [site for site, key in wanted.items() if key not in known]
        for site in fresh:
            client.RegisterNode(RegisterNodeRequest(public_key=wanted[site], name=site))
        deadline = time.monotonic() + OFFLINE_SECONDS
        while time.monotonic() < deadline and any(
            node.public_key in wanted.values() and node.status == NodeStatus.ONLINE
            for node in client.ListNodes(ListNodesRequest()).nodes_info
        ):
            time.sleep(1.0)
    except httpx.HTTPError as error:
        raise FedheadError(f"the SuperLink at {address} did not register the sites' keys: {error}") from error
    finally:
        client.close()
    return fresh
