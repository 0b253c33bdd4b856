"""Ports for a server: checked if given, found if not."""

import errno
import random
import socket

from deploy.deployment.deployment import Deployment, Ports
from deploy.host.errors import DeploymentError

_FIRST, _LAST, _STEP = 8000, 9000, 10


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen on ``address``:``port`` now."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: a connection that is still closing does not hold the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
            # Sends nothing, but finds the way to what this host's clients will ask.
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.connect(where)
    except PermissionError:
        cause = f"ports: this user may not listen on port {port}"
        raise DeploymentError(cause, "use ports from 1024 on (--ports)") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        if error.errno == errno.ENETUNREACH:
            cause = f"no connection to {address} is possible here: the loopback interface is down"
            raise DeploymentError(cause, "as root: ip link set lo up") from None
        missing = error.errno == errno.EADDRNOTAVAIL
        why = " is not an address of this host" if missing else f": {error.strerror}"
        remedy = "use one that ip address shows, or 0.0.0.0 for all"
        raise DeploymentError(f"listen: {address!r}{why}", remedy) from None
    return True


def choose_ports(
    deployment: Deployment, http_listen: str = "127.0.0.1", *, usual: bool = True
) -> Ports:
    """Return the ports asked for, if free; without any, 8000 to 8002 or any three that are free.

    Any, because a server takes its ports seconds after they were chosen: others that start
    meanwhile would all choose the same next ones. Without ``usual``, 8000 to 8002 are left out.
    """
    wanted, address = deployment.ports, deployment.listen
    addresses = dict.fromkeys(Ports.model_fields, http_listen) | {"grpc": address}
    if wanted is not None:
        for use, port in wanted.model_dump().items():
            if not is_free(addresses[use], port):
                cause = f"ports: {use} port {port} on {addresses[use]} is taken by another program"
                raise DeploymentError(
                    cause, "choose others with --ports, or omit it to use free ones"
                )
        return wanted
    others = range(_FIRST + _STEP, _LAST, _STEP)
    for first in (*([_FIRST] if usual else ()), *random.sample(others, len(others))):
        found = Ports(http=first, grpc=first + 1, metrics=first + 2)
        if all(is_free(addresses[use], port) for use, port in found.model_dump().items()):
            return found
    cause = f"ports: no three free ports between {_FIRST} and {_LAST} on {address}"
    raise DeploymentError(cause, "--ports HTTP,GRPC,METRICS")
