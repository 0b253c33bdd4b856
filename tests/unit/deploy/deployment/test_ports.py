import errno
import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy.deployment.deployment import Deployment, Ports, Tls
from deploy.deployment.ports import choose_ports, is_free
from deploy.host.errors import DeploymentError


def test_a_port_somebody_listens_on_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        with pytest.raises(DeploymentError) as caught:
            choose_ports(Deployment(ports=Ports(http=port)))
        assert caught.value.cause == (
            f"ports: http port {port} on 127.0.0.1 is taken by another program"
        )
    assert is_free("127.0.0.1", port)


def test_a_port_is_looked_for_where_it_will_be_used():
    tls = Tls(cert=Path("cert.pem"), key=Path("key.pem"))  # then HTTP stays on 127.0.0.1
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ports = Ports(http=port, grpc=1 if port != 1 else 2)
        with pytest.raises(DeploymentError, match=f"http port {port} on 127.0.0.1 is taken"):
            choose_ports(Deployment(listen="127.0.0.2", ports=ports, tls=tls))
    with socket.create_server(("127.0.0.2", 0)) as server:
        ports = Ports(http=choose_ports(Deployment()).http, grpc=server.getsockname()[1])
        with pytest.raises(DeploymentError, match=f"grpc port {ports.grpc} on 127.0.0.2 is taken"):
            choose_ports(Deployment(listen="127.0.0.2", ports=ports, tls=tls))


def test_ports_that_were_not_asked_for_are_a_free_three():
    first = choose_ports(Deployment())
    with socket.create_server(("127.0.0.1", first.grpc)):
        second = choose_ports(Deployment())
    assert {first.http, first.grpc, first.metrics}.isdisjoint(second.model_dump().values())
    assert (second.grpc, second.metrics) == (second.http + 1, second.http + 2)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EADDRNOTAVAIL, "listen: '::7' is not an address of this host"),
        (errno.EAFNOSUPPORT, "listen: '::7': Address family not supported by protocol"),
        (errno.EINVAL, "listen: '::7': Invalid argument"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_no_port_that_is_taken(monkeypatch, number, says):
    refused = OSError(number, os.strerror(number))
    monkeypatch.setattr(socket, "socket", Mock(side_effect=refused))
    with pytest.raises(DeploymentError) as caught:
        is_free("::7", 8001)
    assert caught.value.cause == says
    assert caught.value.remedy == "use one that ip address shows, or 0.0.0.0 for all"


def test_an_address_and_its_zone_must_be_of_this_host():
    with pytest.raises(DeploymentError, match=r"listen: '203\.0\.113\.7'"):
        choose_ports(Deployment(listen="203.0.113.7"))
    with pytest.raises(DeploymentError, match=r"listen: 'fe80::1%nowhere': "):
        is_free("fe80::1%nowhere", 8001)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_loopback_interface_that_is_down_is_named(address, monkeypatch):
    down = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))  # as in a new namespace
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=down))
    with pytest.raises(DeploymentError, match="the loopback interface is down") as caught:
        is_free(address, 0)
    assert caught.value.remedy == "as root: ip link set lo up"
