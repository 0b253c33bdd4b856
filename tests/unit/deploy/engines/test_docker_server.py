"""A container's server with a stand-in for its engine, whose states are those of Docker 20.10."""

import errno
import io
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException

from deploy.deployment.state import ProcessId
from deploy.engines.docker_server import ContainerServer

RUNS = {"Running": True, "Restarting": False, "ExitCode": 0, "OOMKilled": False}
OF_MEMORY = "was killed by the kernel: it used more than its memory limit (--memory)"


@pytest.mark.parametrize(
    ("states", "said"),
    [
        # The engine notices an end a moment after the process is gone.
        ([RUNS, RUNS | {"Restarting": True, "ExitCode": 137, "OOMKilled": True}], OF_MEMORY),
        ([RUNS, RUNS | {"Running": False, "ExitCode": 1}], "exited with status 1"),
        ([RUNS | {"Restarting": True, "ExitCode": 1}], "exited with status 1"),
        # It has started the container again, or has not noticed in time.
        ([RUNS | {"OOMKilled": True}], OF_MEMORY),
        ([RUNS], "ended"),
    ],
)
def test_an_end_is_told_as_the_engine_has_it_once_it_has_noticed(monkeypatch, states, said):
    monkeypatch.setattr("deploy.engines.docker_server._NOTICED_S", 0.1)
    left = list(states)
    container: Any = SimpleNamespace(attrs={})
    container.reload = lambda: container.attrs.update(
        State=left.pop(0) if len(left) > 1 else left[0]
    )
    server = object.__new__(ContainerServer)
    server._container = container
    assert server._ended() == said


LOST = b"lost\n"


class Log(io.BytesIO):
    """A log on a disk that has no room for one line."""

    def open(self, *_: object, **_options: object) -> "Log":
        return self

    def close(self) -> None:
        """Keep what was written."""

    def write(self, chunk: Any) -> int:
        if chunk == LOST:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(chunk)


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr("deploy.engines.docker_server._AGAIN_S", 0.01)
    return Log()


def followed(log: Log, *streams: list[bytes] | DockerException) -> list[float | None]:
    """Follow a living server's log, stream after stream; return since when each was asked for."""
    server: Any = object.__new__(ContainerServer)
    server.identity, server._plan = ProcessId.of(os.getpid()), SimpleNamespace(log=log)
    left, asked = list(streams), list[float | None]()

    def lines(stream: list[bytes]) -> Iterator[bytes]:
        yield from stream
        if not left:
            server.identity = None

    def logs(*, since: float | None = None, **_: object) -> Iterator[bytes]:
        asked.append(since)
        stream = left.pop(0)
        if isinstance(stream, DockerException):
            raise stream
        return lines(stream)

    server._container = SimpleNamespace(logs=logs)
    follower = threading.Thread(target=server._follow, daemon=True)
    follower.start()
    follower.join(30)
    assert not follower.is_alive()
    return asked


def test_the_log_is_followed_again_after_a_full_disk(log):
    assert followed(log, [b"one\n", LOST, b"three\n"]) == [None]
    assert log.getvalue() == b"one\nthree\n"


def test_a_log_whose_engine_was_restarted_is_followed_from_where_it_ended(log):
    away = DockerException("Error while fetching server API version")
    asked = followed(log, [b"one\n"], away, [b"two\n"])
    assert asked[0] is None
    assert asked[1] == asked[2] is not None
    assert log.getvalue() == b"one\ntwo\n"
