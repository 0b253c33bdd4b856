"""Docker engines that do not answer: said in a line, soon.

The engine that lets a user in is a real one, in tests/containers.
"""

import hashlib
import json
import socket
import threading
import time

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


def test_one_that_takes_the_call_and_says_nothing_does_not_answer(tmp_path, monkeypatch):
    path = tmp_path / "socket"
    monkeypatch.setattr(engine, "_GREETING_S", 0.2)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(BuildError, match="no Docker engine answers at unix://"):
            connect()
        assert time.monotonic() - started < 30


def test_one_that_breaks_off_does_not_answer(tmp_path, monkeypatch):
    path = tmp_path / "socket"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as broken:
        broken.bind(str(path))
        broken.listen()
        threading.Thread(target=lambda: broken.accept()[0].close(), daemon=True).start()
        with pytest.raises(BuildError, match="no Docker engine answers at unix://"):
            connect()


@pytest.fixture
def usual_socket(tmp_path, monkeypatch):
    """Where an engine is looked for if DOCKER_HOST does not say: in the current context."""
    path = tmp_path / "socket"
    digest = hashlib.sha256(b"other").hexdigest()
    (tmp_path / "contexts" / "meta" / digest).mkdir(parents=True)
    host = {"docker": {"Host": f"unix://{path}", "SkipTLSVerify": False}}
    (tmp_path / "contexts" / "meta" / digest / "meta.json").write_text(
        json.dumps({"Name": "other", "Metadata": {}, "Endpoints": host})
    )
    (tmp_path / "config.json").write_text('{"currentContext": "other"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
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
        assert error.remedy is not None
        assert error.remedy.startswith("start it (sudo systemctl start docker)")
    assert hanging.value.cause == "the Docker engine is running, but does not answer"
