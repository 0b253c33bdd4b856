"""HAProxy, configured as the example is, in front of three real servers: no request is lost."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deploy.host.paths import CHECKOUT
from tests.certificates import Authority
from tests.ending import ENDING_HTTP, Ending
from tests.kit import SOON_S, Kit, free_ports, lacking, until
from tests.load import Load

EXAMPLE = CHECKOUT / "containers/haproxy.cfg"
NAMES = ("one", "two", "three")
MODELS = ("--models", "nugraph2_cpu,nugraph3", "--instances", "1")
REQUESTS = 1000


@dataclass(frozen=True)
class Door:
    """HAProxy's address, what its certificate is checked with, and its socket."""

    port: int
    authority: Path
    socket: Path

    def tell(self, command: str) -> str:
        """Say a line to HAProxy's socket, as an administrator does with socat."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(f"{command}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def row(self, name: str, backend: str = "grpc") -> dict[str, str]:
        """Return what HAProxy knows of a server, by the names of its statistics."""
        rows = csv.DictReader(self.tell("show stat -1 4 -1").removeprefix("# ").splitlines())
        [found] = (row for row in rows if (row["pxname"], row["svname"]) == (backend, name))
        return found

    def up(self, name: str) -> bool:
        return self.row(name)["status"] == "UP"

    def load(self, scheme: str = "grpcs") -> Load:
        return Load(f"{scheme}://127.0.0.1:{self.port}", self.authority, REQUESTS)


def configure(kit: Kit, folder: Path, port: int, certificate: Path) -> str:
    """Return the example for these servers: its addresses, files and models replaced."""
    text = EXAMPLE.read_text()
    for number, name in enumerate(NAMES, 1):
        http, grpc, _ = kit.ports[name].split(",")
        text = text.replace(f"192.0.2.{number}:8001", f"127.0.0.1:{grpc} port {http}")
        text = text.replace(f"192.0.2.{number}:8000", f"127.0.0.1:{http}")
    # On one host each server has ports of its own; the example's checks go to one for all.
    text, connects = re.subn(r"http-check connect port 8000", "http-check connect", text)
    assert connects == 2
    for rendered, here in {
        "/run/haproxy/numl.sock": str(folder / "socket"),
        "/etc/haproxy/numl.pem": str(certificate),
        ":8443": f"127.0.0.1:{port}",
    }.items():
        assert rendered in text
        text = text.replace(rendered, here)
    assert "192.0.2" not in text
    return text


@pytest.fixture(scope="module")
def door(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        lacking("no HAProxy (apt-get install haproxy)")
    folder = tmp_path_factory.mktemp("door")
    authority = Authority(folder, "site")
    pair = authority.issue("127.0.0.1")
    pair.key.rename(f"{pair.cert}.key")
    for name in NAMES:
        kit.up(name, *MODELS)
    found = Door(free_ports().http, authority.file, folder / "socket")
    (folder / "haproxy.cfg").write_text(configure(kit, folder, found.port, pair.cert))
    subprocess.run([program, "-c", "-f", "haproxy.cfg"], cwd=folder, check=True)
    with (folder / "log").open("wb") as log:
        words = [program, "-db", "-f", "haproxy.cfg"]
        proxy = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: proxy.poll() is not None or found.socket.exists(), SOON_S, "HAProxy")
        assert proxy.poll() is None, (folder / "log").read_text()
        until(lambda: all(map(found.up, NAMES)), SOON_S, "three servers that pass their checks")
        yield found
    finally:
        proxy.kill()
        proxy.wait()
        for name in NAMES:
            kit.down(name)


def test_a_server_that_is_killed_costs_no_request_and_is_asked_again(kit: Kit, door: Door) -> None:
    with door.load() as load:
        until(lambda: load.asked > 100, 60, "load")
        status = kit.json("status", "--name", "one")
        os.kill(status["state"]["server"]["pid"], signal.SIGKILL)
        until(lambda: not door.up("one"), SOON_S, "HAProxy's notice")
        until(lambda: door.up("one"), 60, "the server that the supervisor starts again")
    assert load.wrong == []


def test_servers_that_are_drained_and_replaced_one_by_one_cost_no_request(
    kit: Kit, door: Door
) -> None:
    with door.load() as load:
        for name in NAMES:
            door.tell(f"set server grpc/{name} state drain")
            assert door.row(name, "http")["status"].startswith("DRAIN")
            until(lambda name=name: door.row(name)["scur"] == "0", 60, "the end of its requests")
            kit.down(name)
            kit.up(name, *MODELS)
            door.tell(f"set server grpc/{name} state ready")
            until(lambda name=name: door.up(name), SOON_S, "the server's first check")
    assert load.wrong == []


def test_http_goes_through_the_same_door(door: Door) -> None:
    with door.load("https") as load:
        pass
    assert load.wrong == []


@pytest.mark.parametrize("ending", ENDING_HTTP, ids=str)
def test_a_request_that_would_end_tritons_http_ends_no_server(
    kit: Kit, door: Door, ending: Ending
) -> None:
    states = [kit.json("status", "--name", name)["state"] for name in NAMES]
    servers = [psutil.Process(state["server"]["pid"]) for state in states]
    ending.send_refused("127.0.0.1", door.port, door.authority)
    for server in servers:
        assert server.is_running()
        assert server.status() != psutil.STATUS_ZOMBIE
