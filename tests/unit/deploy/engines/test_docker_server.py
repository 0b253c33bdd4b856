"""What a container's engine says of a server that has ended, from states seen with Docker 20.10."""

from types import SimpleNamespace
from typing import Any

import pytest

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
