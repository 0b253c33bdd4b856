"""A planned container in the words of the docker SDK, and in those of a command line."""

from __future__ import annotations

import shlex
from typing import Any

from docker.types import DeviceRequest, Healthcheck, Mount, Ulimit

from deploy.deployment import Deployment
from deploy.plan import ContainerPlan, LaunchPlan, mount_field
from deploy.server.command import CONTAINER_PORTS
from deploy.state import endpoint

# The deployment's name, and its folder.
DEPLOYMENT_LABEL, STATE_LABEL = "org.numlkit.deployment", "org.numlkit.state"
_SPARE_BYTES = 64 * 2**20
_SECOND_NS = 10**9
HEALTH_INTERVAL_S, HEALTH_TIMEOUT_S, HEALTH_START_S, HEALTH_RETRIES = 15, 10, 60, 3


def container_labels(plan: LaunchPlan) -> dict[str, str]:
    """Return the labels by which a container is known to be a deployment's."""
    return {
        DEPLOYMENT_LABEL: plan.deployment.name,
        STATE_LABEL: str(plan.log.parent),
    }


def scratch_options(container: ContainerPlan) -> str:
    """Return how /tmp is mounted: what a server may write to, emptied with the container."""
    if not container.extracted_bytes:
        return "mode=1777"
    # Libraries of an environment that is extracted there are loaded from there.
    return f"exec,mode=1777,size={container.extracted_bytes + _SPARE_BYTES}"


def create_options(plan: LaunchPlan) -> dict[str, Any]:
    """Return the keyword arguments of ``docker.containers.create`` for ``plan``."""
    container, deployment = _container(plan), plan.deployment
    options: dict[str, Any] = {
        "image": container.image,
        "name": container.name,
        "entrypoint": [plan.arguments[0]],
        "command": list(plan.arguments[1:]),
        "environment": plan.variables,
        "labels": container_labels(plan),
        "mounts": [
            Mount(str(m.target), str(m.source), type="bind", read_only=not m.writable)
            for m in container.mounts
        ],
        "ports": {
            f"{CONTAINER_PORTS[use]}/tcp": (_published_at(deployment, use), port)
            for use, port in plan.ports.model_dump().items()
        },
        "shm_size": deployment.container_shm_bytes,
        "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in container.limits],
        "read_only": True,
        "tmpfs": {"/tmp": scratch_options(container)},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "restart_policy": {"Name": "unless-stopped" if deployment.heal else "no"},
    }
    if container.user is not None:
        options["user"] = container.user
    if deployment.cpus is not None:
        options["nano_cpus"] = deployment.cpus * _SECOND_NS
    if deployment.memory is not None:
        options["mem_limit"] = int(deployment.memory)
        # As much again of swap would otherwise be allowed.
        options["memswap_limit"] = int(deployment.memory)
    if container.gpus:
        # By the NVIDIA container toolkit, which puts the driver's libraries there, too.
        options["device_requests"] = [
            DeviceRequest(device_ids=list(container.gpus), capabilities=[["gpu"]])
        ]
    if container.health:
        options["healthcheck"] = Healthcheck(
            test=["CMD", *container.health],
            interval=HEALTH_INTERVAL_S * _SECOND_NS,
            timeout=HEALTH_TIMEOUT_S * _SECOND_NS,
            retries=HEALTH_RETRIES,
            start_period=HEALTH_START_S * _SECOND_NS,
        )
    return options


def run_command(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the ``docker run`` command that starts the same container, word by word."""
    container, deployment = _container(plan), plan.deployment
    words = ["docker", "run", "--detach", f"--name={container.name}"]
    words += [f"--label={name}={value}" for name, value in container_labels(plan).items()]
    if container.user is not None:
        words.append(f"--user={container.user}")
    words += ["--read-only", f"--tmpfs=/tmp:{scratch_options(container)}"]
    words += ["--cap-drop=ALL", "--security-opt=no-new-privileges"]
    words += [f"--ulimit={name}={value}" for name, value in container.limits]
    words.append(f"--shm-size={deployment.container_shm_bytes}")
    if deployment.cpus is not None:
        words.append(f"--cpus={deployment.cpus}")
    if deployment.memory is not None:
        words += [f"--memory={int(deployment.memory)}", f"--memory-swap={int(deployment.memory)}"]
    words.append(f"--restart={'unless-stopped' if deployment.heal else 'no'}")
    words += [
        f"--publish={endpoint(_published_at(deployment, use), port)}:{CONTAINER_PORTS[use]}"
        for use, port in plan.ports.model_dump().items()
    ]
    words += [f"--mount={mount_field(m, 'target', 'readonly')}" for m in container.mounts]
    if container.gpus:
        # The quotes are the program's own: without them a comma ends the field.
        words.append(f'--gpus="device={",".join(container.gpus)}"')
    words += [f"--env={name}={value}" for name, value in plan.variables.items()]
    if container.health:
        words += [
            f"--health-cmd={shlex.join(container.health)}",
            f"--health-interval={HEALTH_INTERVAL_S}s",
            f"--health-timeout={HEALTH_TIMEOUT_S}s",
            f"--health-start-period={HEALTH_START_S}s",
            f"--health-retries={HEALTH_RETRIES}",
        ]
    words += [f"--entrypoint={plan.arguments[0]}", container.image, *plan.arguments[1:]]
    return tuple(words)


def _published_at(deployment: Deployment, use: str) -> str:
    return deployment.listen if use == "grpc" else deployment.http_listen


def _container(plan: LaunchPlan) -> ContainerPlan:
    assert plan.container is not None
    return plan.container
