"""Ports for a server: checked if given, found if not."""

from __future__ import annotations

import errno
import socket

from deploy.deployment import Ports
from deploy.errors import DeploymentError

_FIRST, _LAST, _STEP = 8000, 9000, 10


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen on ``address``:``port`` now.

    Raises:
        DeploymentError: If ``address`` is none of this host's.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a connection that is still closing does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen(1)
        except PermissionError:
            raise DeploymentError(f"ports: this user may not listen on port {port}") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise DeploymentError(
                    f"listen: {address!r} is none of this host's addresses"
                ) from None
            return False
    return True


def choose_ports(address: str, wanted: Ports | None, *, http_listen: str | None = None) -> Ports:
    """Return ``wanted`` if free, or else, if None, the first free three.

    Args:
        address: Where the server listens.
        wanted: The ports that were asked for.
        http_listen: Where it listens for HTTP and metrics, if that is another address.

    Raises:
        DeploymentError: Naming the taken port.
    """
    addresses = dict.fromkeys(Ports.model_fields, http_listen or address) | {"grpc": address}
    if wanted is not None:
        for use, port in wanted.model_dump().items():
            if not is_free(addresses[use], port):
                raise DeploymentError(
                    f"ports: {use} port {port} on {addresses[use]} is taken by another program",
                    "other ports (--ports HTTP,GRPC,METRICS), or none to have free ones found",
                )
        return wanted
    for first in range(_FIRST, _LAST, _STEP):
        found = Ports(http=first, grpc=first + 1, metrics=first + 2)
        if all(is_free(addresses[use], port) for use, port in found.model_dump().items()):
            return found
    raise DeploymentError(
        f"ports: no three free ports between {_FIRST} and {_LAST} on {address}",
        "--ports HTTP,GRPC,METRICS",
    )
