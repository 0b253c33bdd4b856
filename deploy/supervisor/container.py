"""A tritonserver in a container of a Docker engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

from deploy.engines.base import await_server, server_below
from deploy.engines.container_options import create_options
from deploy.errors import LaunchError
from deploy.failures.table import Diagnosis, diagnose
from deploy.images.engine import connect, first_line
from deploy.plan import LaunchPlan
from deploy.server.admin_key import keep_key
from deploy.server.command import CONTAINER_KEY, EXIT_TIMEOUT_S
from deploy.supervisor.server import Note, Server

_LAST_WORDS_S = 2.0
_KEY_CHARACTERS = 200
_KEY_S = 10.0

log = logging.getLogger("numlkit.supervisor")


class ContainerServer(Server):
    """A container that is made for the server and removed with it.

    Args:
        plan: What to start.
        note: Is told the server's process.

    Raises:
        LaunchError: If the engine does not start it.
    """

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan)
        plan.key_file.unlink(missing_ok=True)
        assert plan.container is not None
        self._name = plan.container.name
        self._container: Container | None = None
        with _engine_errors():
            client = connect()
            self._container = client.containers.create(**create_options(plan))
            try:
                self._container.start()
                self.identity = await_server(self._server, self._runs)
            except BaseException:
                self._container.remove(force=True)
                raise
        note(server=self.identity)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def key(self) -> str | None:
        """Return the key that its launcher has made; None if there is none, as without launcher."""
        said: list[str] = []
        # Models run as the same user: one that replaces the file could have the question wait.
        asking = threading.Thread(target=self._ask_for_key, args=(said,), daemon=True)
        asking.start()
        asking.join(_KEY_S)
        try:
            key = keep_key(self._plan.key_file, said[0]) if said else None
        except OSError as error:
            log.warning("the key of the admin endpoints cannot be written: %s", error)
            return None
        if key is None:
            log.warning("the server has no key to its admin endpoints")
        return key

    def _ask_for_key(self, said: list[str]) -> None:
        """Add what the file in the container holds."""
        assert self._container is not None
        # As the server's own user: nobody else may read it there.
        words = ["head", "-c", str(_KEY_CHARACTERS), str(CONTAINER_KEY)]
        try:
            said.append(self._container.exec_run(words).output.decode(errors="replace"))
        except (DockerException, requests.RequestException) as error:
            log.warning("the key of the admin endpoints cannot be fetched: %s", error)

    def output(self) -> str:
        """Return what it has said since its start."""
        if not self.alive():
            self._follower.join(_LAST_WORDS_S)
        return super().output()

    def outgrown(self) -> str | None:
        """Return None: the engine keeps the container to its limit."""
        return None

    def stop(self) -> None:
        """Stop and remove the container; what it wrote is gone with it."""
        remove_container(self._name)
        self._follower.join(_LAST_WORDS_S)

    def _server(self) -> psutil.Process | None:
        """Return the server; the container's first process is mostly what launches it."""
        assert self._container is not None
        try:
            first = psutil.Process(self._container.attrs["State"]["Pid"] or -1)
        except (psutil.NoSuchProcess, ValueError):
            return None
        return server_below(first, self._plan.identity)

    def _runs(self) -> bool:
        assert self._container is not None
        self._container.reload()
        return bool(self._container.attrs["State"]["Running"])

    def _follow(self) -> None:
        """Write what the server says into the deployment's log."""
        assert self._container is not None
        # The engine going away ends it; the next server brings the next one.
        with (
            suppress(DockerException, requests.RequestException, OSError),
            self._plan.log.open("ab", buffering=0) as stream,
        ):
            for chunk in self._container.logs(stream=True, follow=True):
                stream.write(chunk)

    def _ended(self) -> str:
        try:
            assert self._container is not None
            self._container.reload()
            state = self._container.attrs["State"]
        except DockerException:
            return "ended"
        if state.get("OOMKilled"):
            return "was ended by the kernel: it used more than its memory limit (--memory)"
        return f"ended with status {state.get('ExitCode')}"


def container_runs(name: str) -> bool:
    """Return whether the container ``name`` runs, on whichever host the engine is.

    Raises:
        KitError: If the engine does not answer, or refuses.
    """
    with _engine_errors():
        client = connect()
        try:
            return bool(client.containers.get(name).attrs["State"]["Running"])
        except NotFound:
            return False
        finally:
            client.close()


def remove_container(name: str) -> None:
    """Stop and remove the container ``name``; one that is not there is no mistake.

    Raises:
        LaunchError: If the engine does not answer, or refuses.
    """
    with _engine_errors():
        client = connect()
        try:
            container = client.containers.get(name)
            # Told first, so that the engine does not start it again.
            container.stop(timeout=EXIT_TIMEOUT_S + 5)
            container.remove(force=True)
        except NotFound:
            return


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what the engine refuses into cause and remedy."""
    try:
        yield
    except (APIError, requests.RequestException) as error:
        words = first_line(error)
        known = diagnose(words) or refusal(words)
        raise LaunchError(known.cause, known.remedy) from None


def refusal(words: str) -> Diagnosis:
    """Return what a Docker engine says, as it says it, where the table does not know it."""
    return Diagnosis(
        f"the Docker engine refuses: {words[:300]}", "its log says more: journalctl -u docker"
    )
