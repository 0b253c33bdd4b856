"""The container of a planned server: each option once, for both the command and the SDK."""

import shlex
from collections.abc import Iterator
from typing import Any

from docker.types import DeviceRequest, Healthcheck, Mount, Ulimit

from deploy.deployment.plan import LaunchPlan, mount_field
from deploy.deployment.state import host_port
from deploy.triton.command import CONTAINER_PORTS

# The deployment's name, and its folder.
DEPLOYMENT_LABEL, STATE_LABEL = "org.numlkit.deployment", "org.numlkit.state"
_SPARE_BYTES = 64 * 2**20
_SECOND_NS = 10**9
_HEALTH_S, _HEALTH_RETRIES = {"interval": 15, "timeout": 10, "start_period": 60}, 3


def create_options(plan: LaunchPlan) -> dict[str, Any]:
    """Return the keyword arguments of ``docker.containers.create``."""
    entrypoint, *command = plan.arguments
    options = {"image": plan.contained.image, "entrypoint": [entrypoint], "command": command}
    for _words, arguments in _options(plan):
        options |= arguments
    return options


def run_command(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the ``docker run`` command that starts the same container, word by word."""
    entrypoint, *command = plan.arguments
    words = [word for words, _arguments in _options(plan) for word in words]
    image = plan.contained.image
    return ("docker", "run", "--detach", *words, f"--entrypoint={entrypoint}", image, *command)


def _options(plan: LaunchPlan) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield each option as words of ``docker run`` and as keyword arguments of the SDK."""
    container, deployment = plan.contained, plan.deployment
    labels = {DEPLOYMENT_LABEL: deployment.name, STATE_LABEL: str(plan.log.parent)}
    yield [f"--name={container.name}"], {"name": container.name}
    yield [f"--label={name}={value}" for name, value in labels.items()], {"labels": labels}
    if container.user is not None:
        yield [f"--user={container.user}"], {"user": container.user}
    if container.groups:
        words = [f"--group-add={group}" for group in container.groups]
        yield words, {"group_add": list(container.groups)}
    yield ["--read-only"], {"read_only": True}
    scratch = "mode=1777"
    if container.extracted_bytes:
        # The libraries of an environment extracted there are loaded from there.
        scratch = f"exec,mode=1777,size={container.extracted_bytes + _SPARE_BYTES}"
    yield [f"--tmpfs=/tmp:{scratch}"], {"tmpfs": {"/tmp": scratch}}
    yield ["--cap-drop=ALL"], {"cap_drop": ["ALL"]}
    yield ["--security-opt=no-new-privileges"], {"security_opt": ["no-new-privileges"]}
    limits = [Ulimit(name=name, soft=value, hard=value) for name, value in container.limits]
    yield [f"--ulimit={name}={value}" for name, value in container.limits], {"ulimits": limits}
    shared = deployment.container_shm_bytes
    yield [f"--shm-size={shared}"], {"shm_size": shared}
    if deployment.shared_memory:
        # For a client in a container that is started with --ipc=container:NAME.
        yield ["--ipc=shareable"], {"ipc_mode": "shareable"}
    if deployment.cpus is not None:
        yield [f"--cpus={deployment.cpus}"], {"nano_cpus": deployment.cpus * _SECOND_NS}
    if deployment.memory is not None:
        # Otherwise as much swap again would be allowed.
        most = int(deployment.memory)
        words = [f"--memory={most}", f"--memory-swap={most}"]
        yield words, {"mem_limit": most, "memswap_limit": most}
    restart = "unless-stopped" if deployment.heal else "no"
    yield [f"--restart={restart}"], {"restart_policy": {"Name": restart}}
    published = [
        (within, deployment.listen if use == "grpc" else plan.http_listen, port)
        for (use, port), (_, within) in zip(plan.ports, CONTAINER_PORTS, strict=True)
    ]
    yield (
        [f"--publish={host_port(address, port)}:{within}" for within, address, port in published],
        {"ports": {f"{within}/tcp": (address, port) for within, address, port in published}},
    )
    mounts = [
        Mount(str(m.target), str(m.source), type="bind", read_only=not m.writable)
        for m in container.mounts
    ]
    words = [f"--mount={mount_field(m, 'target', 'readonly')}" for m in container.mounts]
    yield words, {"mounts": mounts}
    if container.gpus:
        # By the NVIDIA container toolkit, which puts the driver's libraries there, too. The quotes
        # are the program's own: without them a comma ends the field.
        request = DeviceRequest(device_ids=list(container.gpus), capabilities=[["gpu"]])
        yield [f'--gpus="device={",".join(container.gpus)}"'], {"device_requests": [request]}
    words = [f"--env={name}={value}" for name, value in plan.variables.items()]
    yield words, {"environment": plan.variables}
    if container.health:
        words = [f"--health-cmd={shlex.join(container.health)}"]
        words += [f"--health-{n.replace('_', '-')}={seconds}s" for n, seconds in _HEALTH_S.items()]
        words.append(f"--health-retries={_HEALTH_RETRIES}")
        times = {name: seconds * _SECOND_NS for name, seconds in _HEALTH_S.items()}
        test = ["CMD", *container.health]
        yield words, {"healthcheck": Healthcheck(test=test, retries=_HEALTH_RETRIES, **times)}
