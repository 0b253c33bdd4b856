"""The container engines of this host: are they there, do they let this user in, do they serve?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.checks.finding import Finding, Level, ok, wrong
from deploy.deployment import Deployment
from deploy.engines.apptainer_engine import ApptainerEngine
from deploy.engines.container import ContainerEngine
from deploy.engines.docker_engine import DockerEngine
from deploy.errors import KitError
from deploy.failures.docker import INSTALL_TOOLKIT
from deploy.images.engine import connect
from deploy.sif.tools import APPTAINER_OLDEST, install_hint_here, version_in

DOCKER, APPTAINER = "engine docker", "engine apptainer"
_SOCKET = Path("/var/run/docker.sock")
_FUSE = Path("/dev/fuse")
_PROC_SYS = Path("/proc/sys")
_STARTERS = ("libexec", "lib", "lib64", "lib/*")
# What keeps ordinary users from namespaces of their own, and the value that does.
_NAMESPACE_LIMITS = (
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
)


def docker_findings(deployment: Deployment, level: Level) -> Iterator[Finding]:
    """Return what there is of a Docker engine, or of podman in its place.

    Args:
        deployment: What is wanted.
        level: How bad it is if it cannot serve it.
    """
    if not (shutil.which("docker") or _SOCKET.exists() or os.environ.get("DOCKER_HOST")):
        yield _absent(DOCKER, level, "sudo scripts/install_container_tools (Debian, Ubuntu)")
        return
    try:
        client = connect()
        try:
            version, info = client.version(), client.info()
        finally:
            client.close()
    except KitError as error:
        yield wrong(DOCKER, error, level)
        return
    yield ok(DOCKER, docker_in_words(version, info))
    yield from limit_findings(info, deployment, level)
    yield from runtime_findings(info, deployment)
    yield from _image_findings(DOCKER, DockerEngine(), deployment, level)


def docker_in_words(version: dict[str, Any], info: dict[str, Any]) -> str:
    """Return what an engine says of itself, in one line.

    Args:
        version: Its answer to ``/version``.
        info: Its answer to ``/info``.
    """
    names = [component["Name"] for component in version.get("Components", [])]
    name = "podman" if "Podman Engine" in names else "Docker"
    options = info.get("SecurityOptions") or []
    rootless = ", rootless" if any("rootless" in option for option in options) else ""
    runtimes = ", NVIDIA runtime" if "nvidia" in (info.get("Runtimes") or {}) else ""
    return (
        f"{name} {version['Version']} (API {version['ApiVersion']}), storage {info['Driver']} in "
        f"{info['DockerRootDir']}, cgroup v{info.get('CgroupVersion', '1')}{rootless}{runtimes}"
    )


def limit_findings(info: dict[str, Any], deployment: Deployment, level: Level) -> Iterator[Finding]:
    """Return limits that are asked for and that the engine would silently not keep.

    Args:
        info: The engine's answer to ``/info``.
        deployment: What is wanted.
        level: How bad that is.
    """
    for flag, asked, able in (
        ("--memory", deployment.memory, info.get("MemoryLimit", True)),
        ("--cpus", deployment.cpus, info.get("CpuCfsQuota", True)),
    ):
        if asked is not None and not able:
            yield Finding(
                level,
                DOCKER,
                f"{flag} is asked for, and the engine cannot limit it: no cgroup for that here",
                f"leave out {flag}; rootless engines need cgroup v2 and delegated controllers",
            )


def runtime_findings(info: dict[str, Any], deployment: Deployment) -> Iterator[Finding]:
    """Return a warning if an engine does not seem able to hand on GPUs that are wanted.

    It may be, all the same: one that finds NVIDIA's hook on its path needs no runtime.

    Args:
        info: The engine's answer to ``/info``.
        deployment: What is wanted.
    """
    able = "nvidia" in (info.get("Runtimes") or {}) or info.get("DiscoveredDevices")
    if deployment.flavour == "gpu" and not able:
        detail = "the engine names no runtime for GPUs"
        yield Finding("warning", DOCKER, detail, INSTALL_TOOLKIT)


def apptainer_findings(deployment: Deployment, level: Level) -> Iterator[Finding]:
    """Return what there is of Apptainer, and whether this user can run a .sif with it.

    Args:
        deployment: What is wanted.
        level: How bad it is if it cannot serve it.
    """
    program = shutil.which("apptainer")
    if program is None:
        yield _absent(APPTAINER, level, install_hint_here())
        return
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = version_in(done.stdout)
    if version < APPTAINER_OLDEST:
        oldest = ".".join(map(str, APPTAINER_OLDEST))
        detail = f"{done.stdout.strip() or program} is too old: {oldest} or newer is needed"
        yield Finding(level, APPTAINER, detail, install_hint_here())
        return
    host = look_at_host(Path(program))
    yield ok(APPTAINER, f"{done.stdout.strip()}{', setuid' if host.setuid else ''}")
    yield from access_findings(host, level)
    yield from _image_findings(APPTAINER, ApptainerEngine(), deployment, level)


@dataclass(frozen=True)
class ApptainerHost:
    """What a host lets its user do with a .sif.

    Attributes:
        root: Whether the user is root.
        setuid: Whether Apptainer is installed with its setuid program.
        fuse: Whether the user may mount by FUSE; None if there is no ``/dev/fuse``.
        closed: The kernel settings that keep users from namespaces, each with what opens it.
    """

    root: bool
    setuid: bool
    fuse: bool | None
    closed: tuple[tuple[str, str], ...]


def look_at_host(program: Path, settings: Path = _PROC_SYS, fuse: Path = _FUSE) -> ApptainerHost:
    """Return what this host lets this user do.

    Args:
        program: Apptainer.
        settings: The kernel's settings.
        fuse: The device of FUSE.
    """
    prefix = program.resolve().parents[1]
    starters = [
        path for place in _STARTERS for path in prefix.glob(f"{place}/apptainer/bin/starter-suid")
    ]
    closed = []
    for name, closing, opening in _NAMESPACE_LIMITS:
        path = settings / name
        if path.exists() and path.read_text().strip() == closing:
            closed.append((name.replace("/", "."), opening))
    return ApptainerHost(
        root=os.geteuid() == 0,
        setuid=any(path.stat().st_mode & 0o4000 for path in starters),
        fuse=os.access(fuse, os.R_OK | os.W_OK) if fuse.exists() else None,
        closed=tuple(closed),
    )


def access_findings(host: ApptainerHost, level: Level) -> Iterator[Finding]:
    """Return what keeps an ordinary user from running a .sif.

    Args:
        host: What the host lets its user do.
        level: How bad that is.
    """
    if host.root or host.setuid:
        return
    for setting, opening in host.closed:
        detail = f"ordinary users get no namespaces: {setting} is 0"
        yield Finding(level, APPTAINER, detail, f"{opening}, or install apptainer-suid")
    if host.fuse is None:
        detail = "there is no /dev/fuse, by which an ordinary user's .sif is mounted"
        yield Finding(level, APPTAINER, detail, "sudo modprobe fuse, or install apptainer-suid")
    elif not host.fuse:
        detail = "this user may not open /dev/fuse, by which a .sif is mounted"
        yield Finding(level, APPTAINER, detail, "sudo chmod 666 /dev/fuse (its usual mode)")


def _absent(subject: str, level: Level, remedy: str) -> Finding:
    """Return that an engine is not installed, which is nothing wrong where another serves."""
    if level == "problem":
        return Finding("problem", subject, "not installed", remedy)
    return ok(subject, "not installed")


def _image_findings(
    subject: str, engine: ContainerEngine, deployment: Deployment, level: Level
) -> Iterator[Finding]:
    try:
        image = engine.image(deployment=deployment)
    except KitError as error:
        if level == "problem":
            yield wrong(subject, error)
        else:
            yield ok(subject, f"{error.cause} ({error.remedy})")
        return
    environment = image.environment_digest and f", environment {image.environment_digest[:12]}"
    yield ok(subject, f"serves {image.name}{environment}")
