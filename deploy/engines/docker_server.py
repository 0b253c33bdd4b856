"""A server in a container of the Docker engine."""

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import requests
from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from urllib3.exceptions import HTTPError

from deploy.artefacts.docker_client import connect, first_line
from deploy.deployment.plan import LaunchPlan
from deploy.engines.docker_container import create_options
from deploy.engines.server import Note, Server, await_server, servers
from deploy.host.errors import LaunchError
from deploy.host.failures import diagnose
from deploy.triton.command import EXIT_TIMEOUT_S

_LAST_WORDS_S = 2.0
_NOTICED_S = 2.0
_AGAIN_S = 0.5
# The last two: the SDK lets them through while it reads a stream.
_BROKEN_OFF = (DockerException, requests.RequestException, OSError, HTTPError, struct.error)


class ContainerServer(Server):
    """A container created for the server and removed with it."""

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan, note)
        self._name = plan.contained.name
        with engine_errors():
            client = connect()
            self._container: Container = client.containers.create(**create_options(plan))
            try:
                self._container.start()
                self.identity = await_server(self._server, self._runs)
            except BaseException:
                self._container.remove(force=True)
                raise
        self._note(server=self.identity)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def output(self) -> str:
        if not self.alive():
            self._follower.join(_LAST_WORDS_S)
        return super().output()

    def outgrown(self) -> str | None:
        """Return None: the engine enforces the container's limit."""
        return None

    def stop(self) -> None:
        remove_container(self._name)
        self._follower.join(_LAST_WORDS_S)

    def _server(self) -> psutil.Process | None:
        try:
            first = psutil.Process(self._container.attrs["State"]["Pid"] or -1)
            return next(servers(self._plan.identity, among=(first, *first.children())), None)
        except (psutil.Error, ValueError):
            return None

    def _runs(self) -> bool:
        self._container.reload()
        return bool(self._container.attrs["State"]["Running"])

    def _follow(self) -> None:
        """Copy what the container says to the log for as long as its server runs."""
        since: float | None = None
        while True:
            with suppress(*_BROKEN_OFF), self._plan.log.open("ab", buffering=0) as stream:
                for chunk in self._container.logs(stream=True, follow=True, since=since):
                    since = time.time()
                    # What a full disk has no room for is lost; the next lines may find some.
                    with suppress(OSError):
                        stream.write(chunk)
            # An engine that is restarted may leave its containers alone (live-restore).
            if not self.alive():
                return
            time.sleep(_AGAIN_S)

    def _ended(self) -> str:
        # The engine notices a moment after the process is gone, and may start it again.
        deadline = time.monotonic() + _NOTICED_S
        while True:
            try:
                self._container.reload()
            except DockerException:
                return "ended"
            state = self._container.attrs["State"]
            if state.get("OOMKilled"):
                return "was killed by the kernel: it used more than its memory limit (--memory)"
            if not state["Running"] or state.get("Restarting"):
                return f"exited with status {state.get('ExitCode')}"
            if time.monotonic() > deadline:
                return "ended"
            time.sleep(0.05)


def container_runs(name: str) -> bool:
    with engine_errors(), closing(connect()) as client:
        try:
            return bool(client.containers.get(name).attrs["State"]["Running"])
        except NotFound:
            return False


def remove_container(name: str) -> None:
    """Stop and remove the container ``name``, if there is one."""
    with engine_errors(), suppress(NotFound), closing(connect()) as client:
        container = client.containers.get(name)
        # Told first, so that the engine does not start it again.
        container.stop(timeout=EXIT_TIMEOUT_S + 5)
        container.remove(force=True)


@contextmanager
def engine_errors() -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        words = first_line(error)
        raise diagnose(words) or LaunchError(
            f"the Docker engine refused: {words[:300]}", "its log says more: journalctl -u docker"
        ) from None
