"""The Docker engine, reached through the docker SDK."""

from __future__ import annotations

import os
from pathlib import Path

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from deploy.errors import BuildError
from deploy.failures.docker import NO_CONNECTION
from deploy.failures.table import diagnose

# A build step that writes gigabytes says nothing while it does.
_TIMEOUT_S = 1800
_GREETING_S = 10


def connect() -> docker.DockerClient:
    """Return a client of the engine that ``DOCKER_HOST`` names, else of this host's.

    Raises:
        BuildError: If none answers.
    """
    try:
        client = docker.from_env(timeout=_GREETING_S)
        client.ping()
    except (DockerException, RequestException) as error:
        host = os.environ.get("DOCKER_HOST")
        if host:
            raise BuildError(
                f"no Docker engine answers at {host}, which DOCKER_HOST names",
                "set it to where one does, or unset it",
            ) from None
        # Whatever it is, there is no connection; the table knows why.
        known = diagnose(f"{NO_CONNECTION}: {error}")
        assert known is not None
        raise BuildError(known.cause, known.remedy) from None
    client.api.timeout = _TIMEOUT_S
    return client


def first_line(error: BaseException) -> str:
    """Return what an engine's error says, in one line."""
    text = str(getattr(error, "explanation", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def storage_folder(client: docker.DockerClient) -> Path | None:
    """Return where the engine keeps its images; None if that is not a folder of this host."""
    folder = Path(str(client.info().get("DockerRootDir", "")))
    local = client.api.base_url == "http+docker://localhost"  # how a unix socket is shown
    return folder if local and folder.is_dir() else None
