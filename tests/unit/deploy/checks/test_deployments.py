import os
import signal
import socket
import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from deploy.checks.deployments import clear_deployment, deployment_findings
from deploy.checks.host import port_findings, tls_findings
from deploy.client.probe import SmokeResult
from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.state import DeploymentFolder, ProcessId
from deploy.engines import health
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError, KitError
from deploy.host.finding import Finding
from tests.certificates import LONG_AGO, Authority, Pair
from tests.plans import make_plan
from tests.unit.deploy.client.servers import Website, http_server, raw_server
from tests.unit.deploy.deployment.test_state import make_state

pytestmark = pytest.mark.usefixtures("home")
DEAD = ProcessId(pid=1, started=1)  # the number of a process that has started at another time


@pytest.fixture
def living():
    process = subprocess.Popen(["sleep", "60"])
    yield ProcessId.of(process.pid)
    process.kill()
    process.wait()


def _write(**changes: object) -> DeploymentFolder:
    folder = DeploymentFolder("a")
    folder.write_state(make_state("a", log=folder.log, **changes))
    return folder


def _found() -> Finding:
    (finding,) = deployment_findings()
    return finding


def test_a_deployment_is_fine_if_ready_and_what_its_supervisor_struggles_with_is_a_warning():
    _write()
    assert _found() == Finding("ok", "deployment a", "ready, with engine local, at HTTP port 8000")
    _write(phase="healing", cause="port taken", remedy="another one")
    assert _found() == Finding(
        "warning", "deployment a", "it is healing: port taken", "another one"
    )


def test_a_server_without_a_supervisor_is_named_and_left_alone(living):
    _write(supervisor=DEAD, server=living)
    found = _found()
    assert found.level == "problem"
    assert found.detail.startswith("its supervisor is dead; its server still runs")
    assert found.fix is None
    with pytest.raises(KitError, match="is alive again"):
        clear_deployment("a")
    assert living.process() is not None


@pytest.fixture
def asked(monkeypatch):
    """Servers that answer whoever asks for their status."""

    def right(_probe: object, model: str, _golden: object) -> SmokeResult:
        return SmokeResult(model, ready=True, error=None, seconds=None)

    monkeypatch.setattr(health, "smoke", right)
    monkeypatch.setattr(health, "golden_of", lambda _: None)
    monkeypatch.setattr(health, "fetch_counts", lambda *_, **_options: {})


def _problems(folder: DeploymentFolder) -> tuple[tuple[str, ...], str | None]:
    found = health.examine(folder, folder.require_state(), timeout=1.0)
    return found.problems, found.remedy


def test_a_container_that_docker_restarted_is_not_called_dead(asked):
    folder = _write(engine="docker", supervisor=DEAD, server=DEAD, models=())
    folder.write_plan(make_plan(folder.path, engine="docker", identity="restarted"))
    words = ["/opt/tritonserver", "-c", "read _", "--id=restarted"]
    server = subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE)
    unwatched = "the supervisor is dead: failures will not be healed"
    try:
        assert _problems(folder) == ((unwatched,), health.UP_AGAIN)
    finally:
        server.communicate()
    assert _problems(folder) == ((unwatched, "the server is dead"), health.UP_AGAIN)


@pytest.mark.parametrize(
    ("another", "says"),
    [
        (http_server(answers=Website), "is not Triton's HTTP port"),
        (raw_server(b"SSH-2.0-OpenSSH_9.6\r\n"), "not over HTTP"),
    ],
    ids=["website", "sshd"],
)
def test_a_dead_deployment_is_told_also_while_another_program_has_its_port(another, says):
    with another as port:
        ports = Ports(http=port, grpc=1, metrics=2)
        folder = _write(supervisor=DEAD, server=DEAD, ports=ports)
        folder.write_plan(make_plan(folder.path, instances={"nugraph3": 1}, identity="a"))
        (folder.repository / "nugraph3").mkdir(parents=True)
        found = health.examine(folder, folder.require_state(), timeout=1.0)
    assert found.problems[:2] == (
        "the supervisor is dead: failures will not be healed",
        "the server is dead",
    )
    assert found.remedy == health.UP_AGAIN
    assert found.models[0].smoke.error == f"http://127.0.0.1:{port} answers, but {says}"


def test_what_to_do_about_a_server_is_said_by_its_supervisor_if_that_lives(asked):
    dead = "the server is dead"
    assert _problems(_write(server=DEAD, models=())) == ((dead,), "numlkit logs --name a")
    stopping = _write(server=DEAD, models=(), phase="stopping")
    said = (dead, "the deployment is stopping")
    assert _problems(stopping) == (said, "numlkit down --name a")


def test_a_supervisor_that_is_stopped_by_a_signal_is_told(asked, living):
    folder, remedy = _write(supervisor=living, models=()), f"kill -CONT {living.pid}"
    assert _found().level == "ok"
    os.kill(living.pid, signal.SIGSTOP)
    os.waitpid(living.pid, os.WUNTRACED)
    problems, said = _problems(folder)
    assert (problems[0], said) == ("the supervisor is stopped: failures will not be healed", remedy)
    detail = "its supervisor is stopped: failures are not healed"
    assert _found() == Finding("problem", "deployment a", detail, remedy)


def test_a_dead_deployment_is_named_with_why_it_died_and_can_be_cleared_away():
    folder = _write(supervisor=DEAD, server=DEAD, log_start=20)
    folder.log.write_text(
        "archive_read_next_header() failed: an earlier server's words\n"[:19] + "\n"
        "failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use\n"
    )
    found = _found()
    assert (found.level, found.fix is not None) == ("problem", True)
    assert found.detail == (
        "its supervisor and its server are dead: 127.0.0.1:8001 was taken by another program "
        "while the server started (GRPC)"
    )
    assert clear_deployment("a") == (
        "cleared deployment a, which had no live processes; its logs are kept"
    )
    assert not folder.state_file.exists()
    assert folder.log.exists()
    assert list(deployment_findings()) == [Finding("ok", "deployments", "none for this user")]
    with pytest.raises(KitError, match="is gone already"):
        clear_deployment("a")


def test_the_words_of_earlier_servers_say_nothing_of_the_last_one_s_death():
    folder = _write(supervisor=DEAD, server=DEAD, log_start=0)
    folder.log.write_text("archive_read_next_header() failed\n")
    assert "packed execution environment is truncated or damaged" in _found().detail
    _write(supervisor=DEAD, server=DEAD, log_start=folder.log.stat().st_size)
    assert _found().detail == "its supervisor and its server are dead"


def test_a_container_that_an_engine_may_run_elsewhere_is_left_alone(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    _write(engine="docker", container="numlkit-0-ab-a", supervisor=DEAD, server=DEAD)
    found = _found()
    assert found.fix is None
    assert found.detail.startswith("its supervisor is dead, and perhaps its server: no Docker")
    with pytest.raises(KitError, match="no Docker engine answers at"):
        clear_deployment("a")


def test_a_deployment_that_somebody_is_starting_is_not_cleared_away():
    folder = _write(supervisor=DEAD)
    with folder.taking_turns(), pytest.raises(KitError, match="another command is at work in"):
        clear_deployment("a")
    assert folder.state_file.exists()


def test_a_state_file_that_cannot_be_read_is_a_problem_and_another_host_s_is_none():
    folder = _write(supervisor=DEAD, node="elsewhere")
    assert _found() == Finding("ok", "deployment a", "runs on elsewhere: run the check there")
    folder.state_file.write_text("{")
    assert _found().level == "problem"


def test_the_ports_of_the_deployment_s_own_server_are_not_taken(living):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ports = Ports(http=port, grpc=port - 1, metrics=port - 2)
        deployment = Deployment(name="a", ports=ports)
        with pytest.raises(DeploymentError, match=f"http port {port} .* is taken"):
            list(port_findings(Resolved(deployment)))
        _write(supervisor=DEAD, server=living, ports=ports)
        (found,) = port_findings(Resolved(deployment))
        assert found.detail == f"{port}, {port - 1}, {port - 2}: the deployment's own"
        _write(supervisor=DEAD, server=DEAD, ports=ports)
        with pytest.raises(DeploymentError, match="is taken"):
            list(port_findings(Resolved(deployment)))


def test_free_ports_are_named():
    (found,) = port_findings(Resolved(Deployment(name="b")))
    assert found.level == "ok"
    assert found.detail.endswith(" on 127.0.0.1 are free")


def with_tls(pair: Pair) -> Deployment:
    return Deployment.model_validate({"tls": {"cert": pair.cert, "key": pair.key}})


def test_a_certificate_that_ends_soon_is_a_warning_and_one_that_has_ended_is_refused(tmp_path):
    now, authority = datetime.now(timezone.utc), Authority(tmp_path, "site")
    assert not list(tls_findings(Deployment()))
    for valid, level in ((timedelta(days=300), "ok"), (timedelta(days=10), "warning")):
        pair = authority.issue("localhost", valid=(now - valid, now + valid))
        (found,) = tls_findings(with_tls(pair))
        assert found.level == level
        assert found.detail.startswith(f"{pair.cert} is valid until ")
    with pytest.raises(DeploymentError, match="expired"):
        list(tls_findings(with_tls(authority.issue("localhost", valid=LONG_AGO))))
