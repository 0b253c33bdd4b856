"""Docker engines that do not answer: said in a line, soon.

The engine that lets a user in is a real one, in tests/containers.
"""

import hashlib
import json
import socket
import threading
import time
from functools import partial

import docker
import pytest

from deploy.artefacts import docker_client as engine
from deploy.artefacts.docker_client import connect
from deploy.host.errors import BuildError


@pytest.mark.parametrize("host", ["unix:///no/socket", "tcp://127.0.0.1:1", "nonsense"])
def test_the_setting_that_names_it_is_named(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(BuildError) as caught:
        connect()
    assert caught.value.cause == f"no Docker engine answers at {host}, which DOCKER_HOST names"
    assert caught.value.remedy == "point DOCKER_HOST at one that does, or unset it"


@pytest.mark.parametrize("breaks_off", [False, True], ids=["it says nothing", "it breaks off"])
def test_one_that_takes_the_call_and_gives_no_answer_is_named(tmp_path, monkeypatch, breaks_off):
    path = tmp_path / "socket"
    monkeypatch.setattr(engine, "_GREETING_S", 60 if breaks_off else 0.2)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        if breaks_off:
            threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        started = time.monotonic()
        with pytest.raises(BuildError, match="no Docker engine answers at unix://"):
            connect()
        assert time.monotonic() - started < 30


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The folder of Docker's settings, in which nothing names an engine."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path


@pytest.fixture
def usual_socket(config, monkeypatch):
    """Where an engine is looked for if neither DOCKER_HOST nor a context says."""
    path = config / "socket"
    usual = partial(docker.DockerClient, f"unix://{path}")
    monkeypatch.setattr(engine.docker, "from_env", usual)
    return path


def test_one_that_does_not_run_is_told_from_one_that_hangs(usual_socket, monkeypatch):
    with pytest.raises(BuildError) as absent:
        connect()
    monkeypatch.setattr(engine, "_GREETING_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(usual_socket))
        with pytest.raises(BuildError) as dead:
            connect()
        silent.listen()
        with pytest.raises(BuildError) as hanging:
            connect()
    for error in (absent.value, dead.value):
        assert error.cause == "no Docker engine is running here"
        assert error.remedy.startswith("start it (sudo systemctl start docker)")
    assert hanging.value.cause == "the Docker engine is running, but does not answer"


@pytest.mark.parametrize(
    ("variable", "remedy"), [(False, "docker context use default"), (True, "unset DOCKER_CONTEXT")]
)
def test_an_engine_of_a_context_that_is_away_is_named(config, monkeypatch, variable, remedy):
    digest, host = hashlib.sha256(b"rootless").hexdigest(), f"unix://{config}/socket"
    meta = config / "contexts" / "meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    meta.write_text(json.dumps({"Name": "rootless", "Metadata": {}, "Endpoints": endpoints}))
    if variable:
        monkeypatch.setenv("DOCKER_CONTEXT", "rootless")
    settings = {} if variable else {"currentContext": "rootless"}
    (config / "config.json").write_text(json.dumps(settings))
    with pytest.raises(BuildError) as caught:
        connect()
    named = "which the Docker context rootless names"
    assert caught.value.cause == f"no Docker engine answers at {host}, {named}"
    assert caught.value.remedy == f"start that engine, or {remedy}"
