"""What can happen to a deployment only where there is an engine between it and the host."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.artefacts.request import sif_name
from deploy.engines.instance import config_folder, instance_files
from deploy.host.paths import CHECKOUT
from tests.kit import SMALL, Kit, until


@pytest.fixture
def contained(kit):
    if kit.engine == "local":
        pytest.skip("no container to be hurt")
    return kit


def _engine(kit: Kit, name: str, *words: str) -> None:
    config = {"APPTAINER_CONFIGDIR": str(config_folder(kit.folder(name)))}
    subprocess.run(words, env={**os.environ, **config}, check=True, capture_output=True)


def _remove(kit: Kit, container: str) -> None:
    if kit.engine == "docker":
        _engine(kit, "hurt", "docker", "rm", "--force", container)
    else:
        _engine(kit, "hurt", "apptainer", "instance", "stop", "--force", container)


def _kill(kit: Kit, container: str) -> None:
    """Kill what keeps the container: Docker's first process in it, Apptainer's outside of it."""
    if kit.engine == "docker":
        _engine(kit, "hurt", "docker", "kill", container)
    else:
        (file,) = instance_files(kit.folder("hurt"))
        os.kill(json.loads(file.read_text())["ppid"], signal.SIGKILL)


@pytest.mark.parametrize("harm", [_remove, _kill], ids=["removed", "killed"])
def test_a_container_that_somebody_does_away_with_is_replaced(contained, harm, tmp_path):
    sif, image = tmp_path / "numl.sif", list[str]()
    if contained.engine == "apptainer":
        shutil.copy(CHECKOUT / "dist" / sif_name("24.10", "serving"), sif)
        image = ["--image", str(sif)]
    answer = contained.up("hurt", *SMALL, *image)
    assert answer["digest"]
    Path(answer["log"]).unlink()  # as one who tidies up may do
    assert contained.up("hurt", *SMALL, *image)["server"] == answer["server"]
    # What was started is started again, whatever its file holds by then.
    sif.write_bytes(b"something else")
    harm(contained, answer["container"])
    state = contained.mended("hurt", "restarts")
    assert state["container"] == answer["container"]
    assert state["server"] != answer["server"]
    assert contained.json("smoke", "--name", "hurt")["ok"]
    contained.down("hurt")
    assert not contained.leftovers("hurt")


def test_a_container_in_the_way_is_named_and_left_alone(contained):
    """Somebody else's container has the name that ours would get."""
    if contained.engine != "docker":
        pytest.skip("instances are each user's own")
    answer = contained.up("first", *SMALL)
    contained.json("logs", "--name", "first")
    state = contained.folder("first") / "state.json"
    text = state.read_text()
    os.kill(answer["supervisor"]["pid"], signal.SIGKILL)
    state.unlink()
    del contained.ports["first"]  # the container has them still
    try:
        again = contained.json("up", "--name", "first", *SMALL)
        assert again["status"] == 1
        assert "name" in again["error"], again
        assert answer["container"] in again["error"] + again["remedy"], again
    finally:
        state.write_text(text)
        contained.down("first")
    assert not contained.leftovers("first")


@pytest.mark.alone  # stops the engine, and with it everybody's containers
def test_a_restarted_docker_daemon_brings_the_deployment_back(contained):
    if contained.engine != "docker":
        pytest.skip("there is no daemon")
    if os.environ.get("CI") != "true":
        pytest.skip("would restart this host's Docker engine: set CI=true to run it")
    answer = contained.up("daemon", *SMALL)
    daemon = int(Path("/run/docker.pid").read_text())
    os.kill(daemon, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon's end")
    time.sleep(3)  # long enough for a supervisor to fail at replacing the server
    subprocess.run(
        [CHECKOUT / "scripts" / "install_container_tools", "--start-docker"],
        check=True,
        capture_output=True,
    )
    assert contained.mended("daemon", "restarts")["server"] != answer["server"]
    assert contained.json("smoke", "--name", "daemon")["ok"]
    contained.down("daemon")
    assert not contained.leftovers("daemon")
