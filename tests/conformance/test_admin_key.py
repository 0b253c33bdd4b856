"""Who has the key of a deployment may use its admin endpoints, and nobody else has it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from deploy.client.admin import Admin, AdminClosedError, AdminError
from deploy.server.admin_key import read_key
from deploy.supervisor.stubs import living_stubs
from tests.kit import Kit

# As README.md tells client authors.
GRPC_HEADER = "triton-grpc-protocol-numlkit-key"


@pytest.fixture
def key(kit: Kit, demo: dict[str, Any]) -> str:
    return read_key(kit.folder("demo") / "admin.key")


def http(demo: dict[str, Any], key: str) -> Admin:
    return Admin(f"127.0.0.1:{demo['ports']['http']}", key, timeout=60)


def test_who_has_the_key_may_use_the_admin_endpoints(demo: dict[str, Any], key: str) -> None:
    admin = http(demo, key)
    assert {(e.model, e.state) for e in admin.index()} == {(m, "READY") for m in demo["models"]}
    admin.load("nugraph3")
    with grpc.InferenceServerClient(f"127.0.0.1:{demo['ports']['grpc']}") as client:
        headers = {GRPC_HEADER: key}
        assert client.get_log_settings(headers=headers).settings["log_info"].bool_param
        assert client.get_system_shared_memory_status(headers=headers) is not None
        assert client.get_trace_settings(headers=headers).settings["trace_level"].value == ["OFF"]


def test_another_key_opens_nothing(demo: dict[str, Any], key: str) -> None:
    other = key[:-1] + ("0" if key[-1] != "0" else "1")
    with pytest.raises(AdminClosedError) as caught:
        http(demo, other).index()
    assert caught.value.cause == (
        f"127.0.0.1:{demo['ports']['http']} does not list its models: "
        "This API is restricted, expecting header 'numlkit-key'"
    )
    with (
        grpc.InferenceServerClient(f"127.0.0.1:{demo['ports']['grpc']}") as client,
        pytest.raises(InferenceServerException, match="This protocol is restricted"),
    ):
        client.get_model_repository_index(headers={GRPC_HEADER: other})


def test_what_cannot_be_loaded_is_told_in_one_line(demo: dict[str, Any], key: str) -> None:
    with pytest.raises(AdminError) as caught:
        http(demo, key).load("unknown")
    assert caught.value.cause == (
        f"127.0.0.1:{demo['ports']['http']} does not load model unknown: "
        "failed to load 'unknown', failed to poll from model repository"
    )


def test_only_the_owner_may_read_the_file_with_the_key(kit: Kit, key: str) -> None:
    facts = (kit.folder("demo") / "admin.key").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_uid) == (0o600, os.geteuid())


def test_the_key_is_in_no_command_line_and_no_environment(demo: dict[str, Any], key: str) -> None:
    server = psutil.Process(demo["server"]["pid"])
    of_the_server = {server.pid, *(stub.process.pid for stub in living_stubs(server))}
    assert len(of_the_server) > len(demo["models"])
    read = set()
    for pid in {*of_the_server, *psutil.pids()}:
        try:
            for name in ("cmdline", "environ"):
                assert key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes(), (pid, name)
            read.add(pid)
        except OSError:
            continue
    assert of_the_server <= read


def test_the_key_is_in_no_other_file_of_the_deployment_and_in_no_answer(
    kit: Kit, demo: dict[str, Any], key: str
) -> None:
    files = [path for path in kit.folder("demo").rglob("*") if path.is_file()]
    assert [path.name for path in files if key.encode() in path.read_bytes()] == ["admin.key"]
    for command in ("status", "logs"):
        assert key not in kit.run(command, "--name", "demo", "--json").stdout
    if kit.engine == "docker":
        described = subprocess.check_output(["docker", "inspect", demo["container"]], text=True)
        assert key not in described


def test_the_key_goes_with_the_server(kit: Kit, single: dict[str, Any]) -> None:
    path = kit.folder("single") / "admin.key"
    first = read_key(path)
    kit.down("single")
    assert not path.exists()
    kit.up("single", "--models", "nugraph3", "--instances", "1")
    assert read_key(path) != first
