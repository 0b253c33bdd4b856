"""Containers and instances that a deployment has left in the engines, with nobody to own them."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
import requests
from docker.errors import APIError, DockerException, NotFound

from deploy.checks.finding import Finding
from deploy.checks.locks import nobody_at_work
from deploy.engines.container_options import DEPLOYMENT_LABEL, STATE_LABEL
from deploy.errors import DeploymentError, KitError
from deploy.images.engine import connect, first_line
from deploy.paths import deployments_folder
from deploy.state import DeploymentFolder
from deploy.supervisor.instance import config_folder, instance_files, stop_instance

SUBJECT = "leftovers"
_INIT = "appinit"  # what Apptainer calls an instance's first process
_ENDED = ("exited", "created", "dead")
_REMEDY = "python3 deploy/doctor.py --fix"


@dataclass(frozen=True)
class RemoveContainer:
    """Removes a container that has ended and belongs to no deployment.

    Attributes:
        name: Its name.
        id: Its id: another one may get the name.
        folder: The folder of the deployment it was made for.
    """

    name: str
    id: str
    folder: Path

    def apply(self) -> str:
        """Look again, then remove it; the engine itself refuses while it runs."""
        if _has_state(self.folder):
            raise KitError(f"container {self.name} belongs to a deployment again")
        client = connect()
        try:
            client.api.remove_container(self.id, force=False, v=True)
        except NotFound:
            pass
        except (APIError, requests.RequestException) as error:
            raise KitError(f"container {self.name} is not removed: {first_line(error)}") from None
        finally:
            client.close()
        return f"removed container {self.name}"


@dataclass(frozen=True)
class StopInstance:
    """Stops an Apptainer instance without a server in it that belongs to no deployment.

    Attributes:
        name: Its name.
        file: Where Apptainer keeps what it knows of it.
        folder: The folder of the deployment it was made for.
    """

    name: str
    file: Path
    folder: Path

    def apply(self) -> str:
        """Look again while no deployment of that name can be started, then stop it."""
        with nobody_at_work([self.folder / "launch.lock"]):
            if _has_state(self.folder) or _serves(self.file):
                raise KitError(f"instance {self.name} is in use again")
            if _init(self.file) is not None:
                stop_instance(self.name, self.folder)
        return f"stopped instance {self.name}"


def container_findings() -> Iterator[Finding]:
    """Return this user's containers of deployments that have no state.

    Nothing where no Docker engine answers: what is wrong with it is another check's to say.
    """
    try:
        client = connect()
    except KitError:
        return
    try:
        found = _labelled(client)
    except (DockerException, requests.RequestException):
        return
    finally:
        client.close()
    own = re.compile(rf"numlkit-{os.getuid()}-[0-9a-f]{{8}}-.+")
    for container in found:
        name = container["Names"][0].lstrip("/")
        folder = Path(container["Labels"].get(STATE_LABEL, "/"))
        if not own.fullmatch(name) or _has_state(folder):
            continue
        detail = f"container {name} of a deployment that has no state is {container['State']}"
        if container["State"] in _ENDED:
            fix = RemoveContainer(name, container["Id"], folder)
            yield Finding("problem", SUBJECT, detail, _REMEDY, fix)
        else:
            remedy = f"docker rm --force {name}, if nobody uses it"
            yield Finding("problem", SUBJECT, detail, remedy)


def instance_findings() -> Iterator[Finding]:
    """Return instances, in this user's state folder, of deployments that have no state."""
    for folder in sorted(deployments_folder().glob("*")):
        for file in instance_files(folder):
            name = file.stem
            if _has_state(folder) or _init(file) is None:
                continue
            detail = f"instance {name} of a deployment that has no state"
            if _serves(file):
                config = shlex.quote(str(config_folder(folder)))
                remedy = (
                    f"APPTAINER_CONFIGDIR={config} apptainer instance stop {shlex.quote(name)}, "
                    "if nobody uses it"
                )
                yield Finding("problem", SUBJECT, f"{detail} runs a server", remedy)
            else:
                fix = StopInstance(name, file, folder)
                yield Finding("problem", SUBJECT, f"{detail}, with no server in it", _REMEDY, fix)


def _labelled(client: docker.DockerClient) -> list[dict[str, Any]]:
    # The engine's own answer: the SDK would ask again about each of them.
    containers: list[dict[str, Any]] = client.api.containers(
        all=True, filters={"label": DEPLOYMENT_LABEL}
    )
    return containers


def _has_state(folder: Path) -> bool:
    """Return whether a deployment's folder says that there is one; a broken file does, too."""
    try:
        return DeploymentFolder(folder.name, folder.parent).state() is not None
    except DeploymentError:
        return True


def _init(file: Path) -> psutil.Process | None:
    """Return an instance's first process, by which it lives; None if that is dead.

    Its number may be another program's since: Apptainer would stop that.
    """
    try:
        process = psutil.Process(int(json.loads(file.read_bytes())["pid"]))
        calls_itself = " ".join([process.name(), *process.cmdline()])
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if _INIT in calls_itself else None


def _serves(file: Path) -> bool:
    """Return whether there is a server in an instance."""
    process = _init(file)
    try:
        below = process.children(recursive=True) if process is not None else []
        return any(child.name() == "tritonserver" for child in below)
    except psutil.NoSuchProcess:
        return False
