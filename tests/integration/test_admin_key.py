"""The key to the admin endpoints on a host with other users, and where it cannot be hidden."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from deploy.client.admin import Admin, AdminClosedError
from deploy.paths import CHECKOUT
from deploy.repository.stage import VERSION
from deploy.server.admin_key import http_headers, read_key
from deploy.server.golden import read_golden
from deploy.server.keyed_start import PLACEHOLDER
from deploy.server.probe import Probe, smoke
from deploy.supervisor.stubs import living_stubs
from deploy.supervisor.supervise import RETIRE_S
from tests.kit import START_S, Kit, until
from tests.tracing import refuse_tracing

NOBODY = 65534
SMALL = ("--models", "nugraph3", "--instances")

# As README.md tells client authors.
GRPC_HEADER = "triton-grpc-protocol-numlkit-key"


@pytest.fixture
def region() -> Iterator[str]:
    path = Path(f"/dev/shm/numlkit-test-{os.getpid()}")
    path.write_bytes(bytes(1024))
    yield path.name
    path.unlink()


def test_who_has_the_key_may_register_shared_memory(
    kit: Kit, demo: dict[str, Any], region: str
) -> None:
    key = read_key(kit.folder("demo") / "admin.key")
    for library, protocol, headers in (
        (http, "http", dict(http_headers(key))),
        (grpc, "grpc", {GRPC_HEADER: key}),
    ):
        address = f"127.0.0.1:{demo['ports'][protocol]}"
        with library.InferenceServerClient(address) as client:
            with pytest.raises(Exception, match="restricted"):
                client.register_system_shared_memory("r", f"/{region}", 1024)
            client.register_system_shared_memory("r", f"/{region}", 1024, headers=headers)
            assert region in str(client.get_system_shared_memory_status(headers=headers))
            client.unregister_system_shared_memory("r", headers=headers)


def as_nobody(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
        capture_output=True, text=True, errors="replace", **options,
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_host_learns_the_key_from_nothing(
    kit: Kit, demo: dict[str, Any]
) -> None:
    path = kit.folder("demo") / "admin.key"
    key, server = read_key(path), demo["server"]["pid"]
    listed = as_nobody("ps", "-ww", "-o", "args", "-p", str(server)).stdout
    assert "--http-restricted-api=" in listed, "the command line itself is to be seen"
    assert key not in as_nobody("ps", "-eww", "-o", "args").stdout
    assert "Permission denied" in as_nobody("cat", f"/proc/{server}/environ").stderr
    # Whoever can enter the folder, as where home folders are open, cannot read the file.
    folder = os.open(path.parent, os.O_PATH)
    try:
        done = as_nobody("cat", f"/proc/self/fd/{folder}/{path.name}", pass_fds=[folder])
    finally:
        os.close(folder)
    assert done.stdout == ""
    assert "Permission denied" in done.stderr


@pytest.fixture
def closed(kit: Kit) -> Iterator[dict[str, Any]]:
    """A deployment where the kernel refuses tracing."""
    kit.names.append("closed")
    done = subprocess.run(
        [*kit.start, "--json", "--name", "closed", *SMALL, "1"],
        cwd=CHECKOUT, env=kit.variables, preexec_fn=refuse_tracing,
        capture_output=True, text=True, timeout=START_S + 60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    yield json.loads(done.stdout)
    kit.down("closed")


def test_where_the_key_cannot_be_hidden_the_server_runs_with_closed_admin_endpoints(
    kit: Kit, closed: dict[str, Any]
) -> None:
    lines = kit.json("logs", "--name", "closed", "--tail", "1000")["lines"]
    told = (
        "keyed_start: the admin endpoints are closed to everybody: "
        "the key cannot be hidden: ptrace: Operation not permitted"
    )
    assert told in [line.strip() for line in lines]
    key = read_key(kit.folder("closed") / "admin.key")
    with pytest.raises(AdminClosedError):
        Admin(f"127.0.0.1:{closed['ports']['http']}", key, timeout=10).index()
    # What stands in the key's place has a name that cannot be sent: sent by hand, it is another.
    header = PLACEHOLDER.replace("=", ": ").encode()
    with socket.create_connection(("127.0.0.1", closed["ports"]["http"]), timeout=5) as asker:
        asker.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
        assert asker.recv(100).startswith(b"HTTP/1.1 403 ")
    assert kit.json("smoke", "--name", "closed")["ok"]


def test_where_the_admin_endpoints_are_closed_a_dead_stub_is_healed_by_a_restart(
    kit: Kit, closed: dict[str, Any]
) -> None:
    stub = living_stubs(psutil.Process(closed["server"]["pid"]))[0]
    os.kill(stub.process.pid, signal.SIGKILL)
    until(lambda: kit.json("status", "--name", "closed")["status"] != 0, 5, "the notice")
    until(lambda: kit.json("status", "--name", "closed")["status"] == 0, 60, "the restart")
    state = kit.json("status", "--name", "closed")["state"]
    assert (state["restarts"], state["heals"]) == (1, 0)


def test_a_stub_that_dies_at_work_is_replaced_and_none_stays_behind(kit: Kit) -> None:
    """Triton does not unload what it replaces then: the model's other stub would stay."""
    answer = kit.up("busy", *SMALL, "2")
    server = psutil.Process(answer["server"]["pid"])
    golden = read_golden(kit.folder("busy") / "model_repository/nugraph3" / VERSION / "golden.npz")
    probe, done = Probe(f"http://127.0.0.1:{answer['ports']['http']}"), threading.Event()

    def ask() -> None:
        while not done.is_set():
            smoke(probe, "nugraph3", golden)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        before = {stub.process for stub in living_stubs(server)}
        os.kill(min(stub.pid for stub in before), signal.SIGKILL)
        until(lambda: kit.json("status", "--name", "busy")["state"]["heals"] == 1, 60, "healing")
    finally:
        done.set()
        for client in clients:
            client.join()

    def only_new() -> bool:
        stubs = {stub.process for stub in living_stubs(server)}
        return len(stubs) == 2 and not stubs & before

    until(only_new, RETIRE_S + 10, "the end of what was replaced")
    status = kit.json("status", "--name", "busy")
    assert status["ok"], status
    assert status["state"]["server"] == answer["server"]
    kit.down("busy")
