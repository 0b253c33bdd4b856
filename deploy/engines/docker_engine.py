"""The Docker engine, or another one that answers on its socket as podman does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from docker.errors import DockerException, ImageNotFound

from deploy.building.request import image_name
from deploy.deployment import Deployment, Ports
from deploy.engines.container import ContainerEngine, ImageInUse, image_in_use
from deploy.engines.container_options import run_command
from deploy.errors import LaunchError
from deploy.failures.table import diagnose
from deploy.images.engine import connect, first_line
from deploy.plan import LaunchPlan
from deploy.server.command import CONTAINER_LISTEN, CONTAINER_PORTS
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
        name = deployment.image or image_name(deployment.triton, deployment.flavour)
        client = connect()
        try:
            image = client.images.get(name)
        except ImageNotFound:
            build = f"python3 deploy/build.py --target image --flavour {deployment.flavour}"
            raise LaunchError(
                f"the Docker engine has no image {name}",
                build if deployment.image is None else f"docker pull {name}, or docker load it",
            ) from None
        except DockerException as error:
            words = first_line(error)
            known = diagnose(words) or refusal(words)
            raise LaunchError(known.cause, known.remedy) from None
        finally:
            client.close()
        return image_in_use(name, str(image.id), image.labels, deployment)

    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do."""
        limits = (("stack", _STACK_BYTES),)
        return self.planned(
            deployment,
            ports=choose_ports(deployment.listen, deployment.ports),
            listen=CONTAINER_LISTEN,
            inner_ports=Ports(**CONTAINER_PORTS),
            # The image's own user is one without rights; the calling user is, too, or is root.
            user=f"{os.getuid()}:{os.getgid()}" if os.getuid() else None,
            limits=(("memlock", -1), *limits) if may_raise_limits() else limits,
        )

    def command(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the words of a command that starts the planned server by hand."""
        return run_command(plan)

    def clear(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Stop and remove the container; what it wrote is gone with it."""
        if state.container is not None:
            remove_container(state.container)


def may_raise_limits() -> bool:
    """Return whether the engine can lift a container's limit of locked memory.

    One that itself runs without CAP_SYS_RESOURCE, as in a container, refuses it.
    """
    with suppress(OSError):
        for line in Path("/proc/1/status").read_text(encoding="ascii").splitlines():
            if line.startswith("CapBnd:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False
