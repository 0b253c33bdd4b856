"""The Docker engine, reached through its SDK."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
from docker.context import ContextAPI
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from deploy.host.errors import BuildError
from deploy.host.failures import NO_CONNECTION, diagnose

# A build step that writes gigabytes is silent while it does.
_TIMEOUT_S = 1800
_GREETING_S = 10
_CHUNK = 1 << 20


def connect() -> docker.DockerClient:
    """Return a client of the engine that ``DOCKER_HOST`` or a context names, else this host's."""
    try:
        client = docker.from_env(timeout=_GREETING_S)
        client.ping()
    except (DockerException, RequestException) as error:
        host = os.environ.get("DOCKER_HOST")
        if host:
            cause = f"no Docker engine answers at {host}, which DOCKER_HOST names"
            raise BuildError(cause, "point DOCKER_HOST at one that does, or unset it") from None
        away = _context_away()
        if away is not None:
            raise away from None
        known = diagnose(f"{NO_CONNECTION}: {error}")
        assert known is not None
        raise BuildError(known.cause, known.remedy) from None
    client.api.timeout = _TIMEOUT_S
    return client


def _context_away() -> BuildError | None:
    """Return the error for an engine that a Docker context names; None if none does."""
    context, usual = None, ContextAPI.DEFAULT_CONTEXT.Host
    variable = os.environ.get("DOCKER_CONTEXT")
    with suppress(DockerException):  # its certificates are gone, for one
        context = ContextAPI.get_context(variable)
    if context is None or context.Host in (None, "", usual):
        return None
    where = f"{context.Host}, which the Docker context {context.Name} names"
    back = "unset DOCKER_CONTEXT" if variable else "docker context use default"
    return BuildError(f"no Docker engine answers at {where}", f"start that engine, or {back}")


def first_line(error: BaseException) -> str:
    text = str(getattr(error, "explanation", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def storage_folder(client: docker.DockerClient) -> Path | None:
    """Return where the engine keeps its images; None if that is not a folder of this host."""
    folder = Path(str(client.info().get("DockerRootDir", "")))
    local = client.api.base_url == "http+docker://localhost"  # the SDK's name for a unix socket
    return folder if local and folder.is_dir() else None


@contextmanager
def unstarted(client: docker.DockerClient, image: str) -> Iterator[str]:
    """Yield the id of a container that is never started, to read an image's files from."""
    try:
        container = str(client.api.create_container(image, command=["-"])["Id"])
        try:
            yield container
        finally:
            client.api.remove_container(container, force=True, v=True)
    except (APIError, RequestException) as error:
        raise BuildError(f"the Docker engine cannot read {image}: {first_line(error)}") from None


@contextmanager
def exported(client: docker.DockerClient, image: str) -> Iterator[Iterator[bytes]]:
    """Yield the files of an image as a tar, in chunks."""
    with unstarted(client, image) as container:
        yield client.api.export(container, chunk_size=_CHUNK)
