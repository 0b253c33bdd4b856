"""Where an image's files are: in the engine's own folders, or in what it exports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from requests.exceptions import RequestException

from deploy.errors import BuildError
from deploy.images.engine import first_line

_CHUNK = 1 << 20


def layers_of(attributes: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the folders of this machine that hold an image's layers, the uppermost first.

    They are shared by containers and never written to, so reading them disturbs nothing.

    Args:
        attributes: What the engine says of the image.

    Returns:
        The folders; none where this process cannot read them, or they do not hold the
        files as the container will see them: an engine elsewhere, in another user's name,
        or with another way of storing.
    """
    driver = attributes.get("GraphDriver") or {}
    if driver.get("Name") != "overlay2" or os.geteuid() != 0:
        return ()
    data = driver["Data"]
    names = [data["UpperDir"], *data.get("LowerDir", "").split(":")]
    layers = tuple(Path(name) for name in names if name)
    # Where the engine maps user ids, the root of a layer is not root's.
    if all(layer.is_dir() and layer.stat().st_uid == 0 for layer in layers):
        return layers
    return ()


@contextmanager
def exported(client: docker.DockerClient, image: str) -> Iterator[Iterator[bytes]]:
    """Yield an image's files as a tar, in pieces; the container it takes is removed.

    Args:
        client: The engine.
        image: The image's id.

    Raises:
        BuildError: If the engine cannot do it.
    """
    try:
        # It is never started: the command is only asked for.
        container = client.api.create_container(image, command=["-"])["Id"]
        try:
            yield client.api.export(container, chunk_size=_CHUNK)
        finally:
            client.api.remove_container(container, force=True, v=True)
    except (APIError, RequestException) as error:
        raise BuildError(f"the Docker engine cannot export {image}: {first_line(error)}") from None
