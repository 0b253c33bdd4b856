import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import docker
import psutil
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from deploy.deployment.limits import FEWEST_BOUNDED
from deploy.deployment.state import ProcessId
from deploy.engines.server import living_stubs
from deploy.host.paths import CHECKOUT
from deploy.triton.command import closed_endpoints
from tests.kit import until
from tests.site_models import write_beginning


def test_up_ends_with_every_model_answering_rightly(kit, demo):
    assert demo["models"] == ["nugraph2", "nugraph2_cpu", "nugraph3"]
    status = kit.json("status", "--name", "demo")
    assert status["ok"], status
    each = max(len(os.sched_getaffinity(0)), FEWEST_BOUNDED)
    assert [(m["alive"], m["wanted"]) for m in status["models"]] == [(each, each)] * 3


def test_the_smoke_inference_is_right_over_http_and_grpc(kit, demo):
    answer = kit.json("smoke", "--name", "demo")
    assert answer["ok"], answer
    assert {r["url"].split(":")[0] for r in answer["results"]} == {"http", "grpc"}
    assert len(answer["results"]) == 6


def test_up_again_finds_it_running(kit, demo):
    running = kit.noted("demo")["server"]
    assert kit.up("demo")["server"] == running


def test_up_with_other_settings_is_refused_while_it_runs(kit, demo):
    answer = kit.json("up", "--name", "demo", "--instances", "1")
    assert answer["status"] == 1
    assert "running with different settings" in answer["error"]
    assert "numlkit down --name demo" in answer["remedy"]


def test_logs_show_what_the_server_said(kit, demo):
    answer = kit.json("logs", "--name", "demo", "--tail", "500")
    assert any("Started HTTPService" in line for line in answer["lines"])


def test_the_server_is_reached_by_loopback_only(demo):
    addresses = [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    for port in demo["ports"].values():
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        for address in addresses:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=5)


@pytest.mark.parametrize(("library", "protocol"), [(http, "http"), (grpc, "grpc")])
def test_admin_endpoints_are_closed_to_everybody(demo, library, protocol):
    with library.InferenceServerClient(f"127.0.0.1:{demo['ports'][protocol]}") as client:
        for ask in (
            client.get_model_repository_index,
            lambda: client.load_model("nugraph3"),
            lambda: client.unload_model("nugraph3"),
            client.get_trace_settings,
            lambda: client.update_trace_settings("nugraph3", {"trace_level": ["TIMESTAMPS"]}),
            client.get_log_settings,
            lambda: client.update_log_settings({"log_verbose_level": 1}),
            client.get_system_shared_memory_status,
            client.get_cuda_shared_memory_status,
            lambda: client.register_system_shared_memory("r", "/r", 1),
        ):
            with pytest.raises(InferenceServerException, match="restricted"):
                ask()
        assert client.is_model_ready("nugraph3")


def test_the_header_that_the_list_of_processes_shows_opens_nothing(demo):
    [flag] = [flag for flag in closed_endpoints() if flag.startswith("--http")]
    name, _, value = flag.partition(":")[2].partition("=")
    # By hand: a client's library refuses to send such a name.
    request = f"GET /v2/logging HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", demo["ports"]["http"]), timeout=5) as asker:
        asker.sendall(request.encode())
        assert asker.recv(100).startswith(b"HTTP/1.1 403 ")


def test_the_end_of_one_of_two_deployments_with_an_idle_client_leaves_nothing_but_the_other(
    kit, demo, single
):
    assert set(single["ports"].values()).isdisjoint(demo["ports"].values())
    with socket.create_connection(("127.0.0.1", single["ports"]["http"])) as idle:
        idle.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        assert kit.down("single")["stopped"] == ["single"]
        assert time.monotonic() - started < 30, "as long as Triton by itself waits for a client"
    assert not kit.leftovers("single", single["scratch"])
    for process in ("server", "supervisor"):
        # One that has ended may wait for the host's init to reap it.
        assert ProcessId.model_validate(single[process]).process() is None
    assert kit.json("status", "--name", "single")["status"] == 1
    assert kit.json("status", "--name", "demo")["ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_behind(kit, number):
    command = [*kit.start, "--name", "broken-off", "--models", "nugraph3"]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=kit.variables, stderr=subprocess.PIPE, text=True
    )
    folder = kit.state / "numlkit/deployments/broken-off"
    until(lambda: (folder / "state.json").exists(), "the start")
    scratch = json.loads((folder / "state.json").read_text())["scratch"]
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert "interrupted" in process.stderr.read()
    assert not (folder / "state.json").exists()
    assert not kit.leftovers("broken-off", scratch)


def test_a_deployment_that_is_not_ready_in_time_fails_with_its_log(kit, tmp_path):
    write_beginning(tmp_path, "slow", "import time; time.sleep(600)")
    flags = ("--models-dir", str(tmp_path), "--models", "slow")
    answer = kit.refused("late", *flags, "--timeout", "0.01")
    assert "not ready in time" in answer["error"]


def test_it_keeps_to_the_cores_it_is_given(kit):
    answer = kit.up("narrow", "--models", "nugraph3", "--cpus", "1")
    stubs = living_stubs(psutil.Process(answer["server"]["pid"]))
    assert len(stubs) == FEWEST_BOUNDED, "for the core that it may use, not for the host's"
    if kit.engine == "docker":
        limit = docker.from_env().containers.get(answer["container"]).attrs["HostConfig"]
        assert limit["NanoCpus"] == 10**9
    else:
        assert len(psutil.Process(stubs[0].process.pid).cpu_affinity()) == 1
    kit.end("narrow")


def test_a_memory_limit_that_is_too_small_is_the_cause_that_is_told(kit):
    answer = kit.refused("small", "--models", "nugraph3", "--memory", "40m")
    assert "memory" in answer["error"], answer


def test_other_programs_can_read_the_state_file(kit, demo):
    state = json.loads((kit.state / "numlkit/deployments/demo/state.json").read_text())
    assert state["ports"] == demo["ports"]
    assert state["engine"] == kit.engine
    assert Path(state["log"]).exists()
    assert psutil.pid_exists(state["server"]["pid"])
