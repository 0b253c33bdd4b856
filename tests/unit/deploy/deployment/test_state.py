import os
import platform
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy.deployment import state
from deploy.deployment.deployment import Ports
from deploy.deployment.state import (
    DeploymentFolder,
    DeploymentState,
    ProcessId,
    default_endpoint,
    host_port,
)
from deploy.host.errors import DeploymentError, KitError
from tests.programs import running


def make_state(name: str, **changes: object) -> DeploymentState:
    values = {
        "name": name,
        "engine": "local",
        "node": platform.node(),
        "host": "127.0.0.1",
        "ports": Ports(),
        "models": ("nugraph3",),
        "artefact": "0" * 64,
        "log": Path("/log"),
        "phase": "ready",
        "supervisor": ProcessId.of(os.getpid()),
    }
    return DeploymentState.model_validate({**values, **changes})


def test_a_launch_leaves_the_state_that_it_has_written_and_else_no_folder(home):
    folder = DeploymentFolder("a")
    with suppress(ZeroDivisionError), folder.taking_turns():
        assert folder.path.exists()
        raise ZeroDivisionError
    assert not folder.path.exists()
    with folder.taking_turns():
        folder.write_state(make_state("a"))
    assert DeploymentFolder("a").state() == make_state("a")


def test_two_that_start_the_same_deployment_take_turns_though_nothing_of_it_stays(home):
    """Each adds up what it finds, which no two do at once."""
    inside, most = [], []

    def launch() -> None:
        for _ in range(200):
            with DeploymentFolder("a").taking_turns():
                inside.append(None)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 800
    assert not DeploymentFolder("a").path.exists()


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"name": "a"}'])
def test_a_state_file_that_cannot_be_read_is_named_not_taken_for_none(
    tmp_path, monkeypatch, content
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    folder = DeploymentFolder("a")
    folder.path.mkdir(parents=True)
    folder.state_file.write_text(content)
    with pytest.raises(DeploymentError, match=r"state\.json: not a state file") as caught:
        folder.state()
    assert caught.value.remedy == (
        f"stop what runs there (pgrep -af '{folder.path}'), then remove the file"
    )
    assert default_endpoint("http") is None


def test_a_deployment_of_another_host_is_left_to_that_host(home):
    DeploymentFolder("a").write_state(make_state("a", node="elsewhere"))
    with pytest.raises(DeploymentError, match="deployment a runs on elsewhere"):
        DeploymentFolder("a").require_state()
    assert default_endpoint("http") is None


def test_a_process_that_ended_and_a_later_one_of_its_number_are_not_alive():
    with running("cat") as process:
        identity = ProcessId.of(process.pid)
        assert identity.process() == psutil.Process(process.pid)
        assert identity.model_copy(update={"started": identity.started - 1}).process() is None
        process.kill()
        # A zombie until it is waited for: dead all the same.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identity.process() is None
    assert identity.process() is None


def test_a_process_whose_name_is_no_text_is_known():
    script = r"import ctypes; ctypes.CDLL(None).prctl(15, b'\xff) (', 0, 0, 0); print(); input()"
    with running(sys.executable, "-c", script) as process:
        process.stdout.readline()
        assert ProcessId.of(process.pid).is_running()


def test_the_default_endpoint_is_that_of_the_only_running_deployment(home):
    assert default_endpoint("http") is None
    DeploymentFolder("a").write_state(make_state("a"))
    assert default_endpoint("grpc") == "grpc://127.0.0.1:8001"
    DeploymentFolder("b").write_state(make_state("b", ports=Ports(http=1, grpc=2, metrics=3)))
    with pytest.raises(DeploymentError, match="several deployments are running: a, b"):
        default_endpoint("grpc")


def test_grpc_and_http_have_addresses_of_their_own_that_clients_on_this_host_can_use():
    plain = make_state("a", host="10.0.0.5", http_host="10.0.0.5")
    assert plain.url("http") == "http://10.0.0.5:8000"
    assert plain.url("grpc") == "grpc://10.0.0.5:8001"
    tls = make_state("a", host="10.0.0.5", tls={"cert": "/c.pem", "key": "/k.pem"})
    assert (tls.url("http"), tls.url("grpc")) == ("http://127.0.0.1:8000", "grpcs://10.0.0.5:8001")
    assert state.reachable_host("0.0.0.0") == "127.0.0.1"
    assert state.reachable_host("10.0.0.1") == "10.0.0.1"
    assert host_port(state.reachable_host("::"), 8000) == "[::1]:8000"


def test_a_host_without_proc_is_told_so_and_no_server_counts_as_dead(tmp_path, monkeypatch):
    """As in a chroot: what is looked for there is not found in an empty folder."""
    server = ProcessId.of(os.getpid())
    monkeypatch.setattr(state, "Path", lambda path: tmp_path / path.lstrip("/"))
    for look in (server.process, server.is_running, lambda: ProcessId.of(os.getpid())):
        with pytest.raises(KitError, match="/proc is not mounted here") as caught:
            look()
        assert caught.value.remedy == "as root: mount -t proc proc /proc"
