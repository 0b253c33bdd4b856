"""The Docker engine, or another one that answers on its socket as podman does."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from docker.errors import DockerException, ImageNotFound

from deploy.building.request import image_name
from deploy.console import Say
from deploy.deployment import Deployment, Ports
from deploy.engines.container import (
    IMAGE_USER,
    ContainerEngine,
    ImageInUse,
    image_in_use,
    uses_archive,
)
from deploy.engines.container_options import run_command
from deploy.engines.packed import find_archive
from deploy.engines.site import fit_flavours, site_environments, site_models
from deploy.errors import DeploymentError, LaunchError
from deploy.failures.table import diagnose
from deploy.images.base import base_name
from deploy.images.engine import connect, first_line
from deploy.plan import LaunchPlan
from deploy.repository.stage import stage
from deploy.server.command import CONTAINER_KEY, CONTAINER_LISTEN, CONTAINER_PORTS
from deploy.server.ports import choose_ports
from deploy.state import DeploymentFolder, DeploymentState
from deploy.supervisor.container import refusal, remove_container

# Stubs lock memory and have deep stacks: what NVIDIA advises for Triton in a container.
_STACK_BYTES = 64 * 2**20
_CAP_SYS_RESOURCE = 24  # capabilities(7)


class DockerEngine(ContainerEngine):
    """Runs tritonserver in a container of the Docker engine."""

    name = "docker"

    def image(self, *, deployment: Deployment) -> ImageInUse:
        """Return the image that a launch would start."""
        triton, flavours = deployment.triton, fit_flavours(deployment)
        remedy = f"python3 deploy/build.py --target image --flavour {flavours[0]}"
        names = [image_name(triton, flavour) for flavour in flavours]
        if deployment.image or deployment.env == "packed":
            names = [deployment.image or base_name("ngc", triton)]
            remedy = f"docker pull {names[0]}, or docker load it"
        client = connect()
        try:
            for name in names:
                with suppress(ImageNotFound):
                    image = client.images.get(name)
                    return image_in_use(name, str(image.id), image.labels, deployment)
        except DockerException as error:
            words = first_line(error)
            known = diagnose(words) or refusal(words)
            raise LaunchError(known.cause, known.remedy) from None
        finally:
            client.close()
        raise LaunchError(f"the Docker engine has no image {names[0]}", remedy)

    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do."""
        limits = (("stack", _STACK_BYTES),)
        return self.planned(
            deployment,
            ports=choose_ports(
                deployment.listen, deployment.ports, http_listen=deployment.http_listen
            ),
            listen=CONTAINER_LISTEN,
            http_listen=CONTAINER_LISTEN,
            inner_ports=Ports(**CONTAINER_PORTS),
            # The server's user there is not the key's owner here.
            new_key=CONTAINER_KEY,
            user=_user(deployment),
            limits=(("memlock", -1), *limits) if may_raise_limits() else limits,
        )

    def prepare(self, *, deployment: Deployment, say: Say) -> None:
        """Check also that the server in the container may read what it needs."""
        super().prepare(deployment=deployment, say=say)
        if os.getuid() == 0:
            for file in _shown(deployment):
                if not readable_in_image(file):
                    raise DeploymentError(
                        f"{file}: the server's user in the container (1000, group 0) may not "
                        "read it",
                        f"chgrp 0 {shlex.quote(str(file))}; chmod g+r {shlex.quote(str(file))}",
                    )

    def require_room(self, deployment: Deployment, extracted: int) -> None:
        """Check the memory: a container's /tmp is in it."""
        remedy = "the kit's image, where the environment lies unpacked (without --env packed)"
        free = psutil.virtual_memory().available
        if extracted > free:
            raise LaunchError(
                f"packed environments take {extracted / 1e6:.0f} MB of memory when they are "
                f"extracted, {free / 1e6:.0f} MB are free",
                remedy,
            )
        if deployment.memory is not None and extracted > deployment.memory:
            raise LaunchError(
                f"packed environments take {extracted / 1e6:.0f} MB of memory when they are "
                f"extracted, the container is to have {deployment.memory / 1e6:.0f} MB",
                f"a higher --memory, or {remedy}",
            )

    def command(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the words of a command that starts the planned server by hand."""
        return run_command(plan)

    def lay_out(self, *, deployment: Deployment, folder: DeploymentFolder) -> None:
        """Leave out the key, which is made in the container."""
        stage(self.models(deployment=deployment), folder.repository)

    def clear(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Stop and remove the container; what it wrote is gone with it."""
        if state.container is not None:
            remove_container(state.container)


def _user(deployment: Deployment) -> str | None:
    """Return ``uid:gid`` of the server; None: the user of the kit's image, who has no rights."""
    if os.getuid():
        return f"{os.getuid()}:{os.getgid()}"
    # A stock image's user is root.
    return f"{IMAGE_USER}:0" if deployment.env == "packed" else None


def _shown(deployment: Deployment) -> list[Path]:
    """Return the files of others that the server reads."""
    site = site_models(deployment)
    shown = [path for model in site for path in model.files.values()]
    shown += [given.path for given in site_environments(site)]
    if uses_archive(deployment):
        shown.append(find_archive(deployment))
    if deployment.tls is not None:
        files = (deployment.tls.cert, deployment.tls.key, deployment.tls.ca)
        shown += [file for file in files if file is not None]
    return shown


def readable_in_image(file: Path) -> bool:
    """Return whether the user of the kit's image, 1000 in group 0, may read a file."""
    facts = file.stat()
    return bool(
        facts.st_mode & stat.S_IROTH
        or (facts.st_mode & stat.S_IRGRP and facts.st_gid == 0)
        or (facts.st_mode & stat.S_IRUSR and facts.st_uid == IMAGE_USER)
    )


def may_raise_limits() -> bool:
    """Return whether the engine can lift a container's limit of locked memory.

    One that itself runs without CAP_SYS_RESOURCE, as in a container, refuses it.
    """
    with suppress(OSError):
        for line in Path("/proc/1/status").read_text(encoding="ascii").splitlines():
            if line.startswith("CapBnd:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False
