"""The front doors as the kit has them, Envoy of the chart and the example for HAProxy, on loopback.

What differs from what is rendered is addresses, ports and folders.
"""

import csv
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import yaml

from deploy.host.paths import CHECKOUT
from tests.certificates import Authority
from tests.chart import Site, find, render
from tests.kit import SOON_S, Ports, free_ports, lacking, until
from tests.programs import started

HAPROXY = CHECKOUT / "containers/haproxy.cfg"


@dataclass(frozen=True)
class Server:
    """A server's ports on loopback."""

    http: int
    grpc: int


@dataclass
class Door(ABC):
    """A running front door.

    Attributes:
        limit: What its memory may have, in bytes.
    """

    port: int
    authority: Authority
    process: subprocess.Popen[bytes]
    limit: int

    @property
    def memory(self) -> int:
        """What it has, in bytes."""
        own = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (own, *own.children()))

    def https(self, source: str = "") -> AbstractContextManager[http.client.HTTPSConnection]:
        """Connect over HTTPS, perhaps from a certain address of loopback."""
        trusted = ssl.create_default_context(cafile=self.authority.file)
        own = {"source_address": (source, 0), "timeout": SOON_S}
        return closing(http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, **own))

    def channel(self, **more: Any) -> grpc.Channel:
        """Connect over gRPC."""
        trusted = grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        return grpc.secure_channel(f"127.0.0.1:{self.port}", trusted, **more)

    @abstractmethod
    def up(self, server: Server) -> bool:
        """Whether it sends requests to this server."""


@dataclass
class Haproxy(Door):
    """HAProxy, and its socket."""

    socket: Path

    def tell(self, command: str) -> str:
        """Say a line to HAProxy's socket, as an administrator does with socat."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(f"{command}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def row(self, server: Server, backend: str = "grpc") -> dict[str, str]:
        """Return what HAProxy knows of a server, by the names of its statistics."""
        rows = csv.DictReader(self.tell("show stat -1 4 -1").removeprefix("# ").splitlines())
        port = server.grpc if backend == "grpc" else server.http
        [found] = (r for r in rows if (r["pxname"], r["addr"]) == (backend, f"127.0.0.1:{port}"))
        return found

    def up(self, server: Server) -> bool:
        return self.row(server)["status"] == "UP"


@dataclass
class Envoy(Door):
    """Envoy, its administrator's port, and the one for kubelet and Prometheus."""

    admin: int
    status: int

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=60) as said:
            text: str = said.read().decode()
        return text

    def up(self, server: Server) -> bool:
        for cluster in json.loads(self.ask("/clusters?format=json"))["cluster_statuses"]:
            for host in cluster.get("host_statuses", []):
                address = host["address"].get("socket_address", {})
                if cluster["name"].startswith("grpc") and address["port_value"] == server.grpc:
                    return set(host["health_status"]) <= {"eds_health_status"}
        raise LookupError(server)


def haproxy_text(folder: Path, servers: Sequence[Server], port: int, certificate: Path) -> str:
    """Return the example for these servers."""
    text = HAPROXY.read_text()
    for number, server in enumerate(servers, 1):
        text = text.replace(f"192.0.2.{number}:8001", f"127.0.0.1:{server.grpc} port {server.http}")
        text = text.replace(f"192.0.2.{number}:8000", f"127.0.0.1:{server.http}")
    text = re.sub(r"^ +server .*192\.0\.2\..*\n", "", text, flags=re.M)
    # On one host each server has ports of its own; the example's checks go to one for all.
    text, connects = re.subn(r"http-check connect port 8000", "http-check connect", text)
    assert connects == 2
    for rendered, here in {
        "/run/haproxy/numl.sock": str(folder / "socket"),
        "/etc/haproxy/numl.pem": str(certificate),
        ":8443": f"127.0.0.1:{port}",
        # It counts two file descriptors for each connection, which a test's host may not allow.
        "maxconn 12000": "maxconn 12000\n  no strict-limits",
    }.items():
        assert rendered in text
        text = text.replace(rendered, here)
    assert "192.0.2" not in text
    return text


@contextmanager
def haproxy(folder: Path, servers: Sequence[Server]) -> Iterator[Haproxy]:
    """Run it before these servers, until the block ends."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        lacking("no HAProxy (apt-get install haproxy)")
    authority, port = Authority(folder, "site"), free_ports().http
    pair = authority.issue("127.0.0.1", name="haproxy")
    pair.key.rename(f"{pair.cert}.key")
    (folder / "haproxy.cfg").write_text(haproxy_text(folder, servers, port, pair.cert))
    subprocess.run([program, "-c", "-f", "haproxy.cfg"], cwd=folder, check=True)
    with _running(folder, program, "-db", "-f", "haproxy.cfg") as process:
        found = Haproxy(port, authority, process, 2 << 30, folder / "socket")
        until(lambda: process.poll() is not None or found.socket.exists(), "HAProxy")
        assert process.poll() is None, (folder / "log").read_text()
        until(lambda: all(map(found.up, servers)), "servers that pass their checks")
        yield found


def envoy_config(
    site: Site, folder: Path, servers: Sequence[Server], ports: Ports
) -> dict[str, str]:
    """Return the rendered files for these servers."""
    files: dict[str, str] = find(render(site), "ConfigMap", "numl-front")["data"]
    for name, text in files.items():
        for rendered in ("/etc/envoy", "/etc/numl/tls", "/etc/numl/tenants"):
            text = text.replace(rendered, str(folder))
        files[name] = text
    config: dict[str, Any] = yaml.safe_load(files["envoy.yaml"])
    resources = config["static_resources"]
    config["admin"]["address"] = _address(ports.grpc)
    for listener in resources["listeners"]:
        if listener["name"] in ("front", "status"):
            port = ports.http if listener["name"] == "front" else ports.metrics
            listener["address"] = _address(port)
    for cluster in resources["clusters"]:
        kind = cluster["name"].split("-")[0]
        if kind == "admin":
            [endpoint] = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            endpoint["endpoint"]["address"] = _address(ports.grpc)
        if kind in ("grpc", "http"):  # in place of DNS
            del cluster["cluster_type"]
            cluster["type"] = "STATIC"
            cluster["load_assignment"]["endpoints"] = [
                {"lb_endpoints": [_endpoint(getattr(s, kind), s.http) for s in servers]}
            ]
    files["envoy.yaml"] = yaml.safe_dump(config, sort_keys=False)
    return files


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _endpoint(port: int, checked: int) -> dict[str, Any]:
    own = {"address": _address(port), "health_check_config": {"port_value": checked}}
    return {"endpoint": own}


@contextmanager
def envoy(folder: Path, servers: Sequence[Server], site: Site | None = None) -> Iterator[Envoy]:
    """Run it before these servers as it is rendered for ``site``, until the block ends."""
    site = Site(("cpu",)) if site is None else site
    authority, ports = Authority(folder, "site"), free_ports()
    pair = authority.issue("127.0.0.1", name="envoy")
    shutil.copy(pair.cert, folder / "tls.crt")
    shutil.copy(pair.key, folder / "tls.key")
    for name, text in envoy_config(site, folder, servers, ports).items():
        (folder / name).write_text(text)
    program = Path(sys.executable).with_name("envoy")
    words = ("--config-path", "envoy.yaml", "--concurrency", "2", "--disable-hot-restart")
    with _running(folder, program, *words) as process:
        resources = find(render(site), "Deployment", "numl-front")["spec"]["template"]["spec"]
        memory = resources["containers"][0]["resources"]["limits"]["memory"]
        found = Envoy(ports.http, authority, process, _bytes(memory), ports.grpc, ports.metrics)

        def serves() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return all(map(found.up, servers))
            except OSError:
                return False

        until(serves, "Envoy and servers that pass their checks")
        yield found


def door_of(
    name: str, folder: Path, servers: Sequence[Server], site: Site
) -> AbstractContextManager[Door]:
    """Run the one of this name, Envoy as it is rendered for ``site``."""
    return haproxy(folder, servers) if name == "haproxy" else envoy(folder, servers, site)


def _bytes(memory: str) -> int:
    number, unit = memory[:-2], memory[-2:]
    return int(number) * {"Mi": 1 << 20, "Gi": 1 << 30}[unit]


@contextmanager
def _running(folder: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / "log").open("wb") as log,
        started(*words, cwd=folder, stdout=log, stderr=log) as process,
    ):
        yield process
