"""The Docker engine, or another that answers on its socket, as podman does."""

import os
import re
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import docker
import psutil
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from deploy.artefacts.cosign import verify_image
from deploy.artefacts.docker_client import connect, first_line, storage_folder, unstarted
from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import TRITON_LABEL
from deploy.artefacts.manifest import read_manifest
from deploy.artefacts.reference import Reference, parse_reference
from deploy.artefacts.request import image_name
from deploy.artefacts.tags import verify_tag
from deploy.artefacts.triton import asking, stock_image, version_in
from deploy.deployment.deployment import Ports
from deploy.deployment.plan import ContainerPlan
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.engines.base import ROOM
from deploy.engines.container import (
    STOCK_LABEL,
    ContainerEngine,
    ImageInUse,
    has_state,
    image_in_use,
    unpack,
)
from deploy.engines.docker_container import (
    DEPLOYMENT_LABEL,
    STATE_LABEL,
    run_command,
)
from deploy.engines.docker_server import (
    ContainerServer,
    container_runs,
    engine_errors,
    remove_container,
)
from deploy.engines.leftovers import FIX, LEFTOVERS
from deploy.host.console import Say
from deploy.host.errors import (
    DeploymentError,
    KitError,
    LaunchError,
    SignatureError,
    UncheckedError,
)
from deploy.host.failures import INSTALL_TOOLKIT
from deploy.host.files import as_stream
from deploy.host.finding import Finding, Level, ok, wrong
from deploy.host.paths import DIST
from deploy.host.room import Room, size

IMAGE_USER = 1000  # in group 0: containers/Dockerfile
# Stubs lock memory and have deep stacks: NVIDIA's advice for Triton in a container.
_STACK_BYTES = 64 * 2**20
_CAP_SYS_RESOURCE = 24  # capabilities(7)
_SOCKET = Path("/var/run/docker.sock")
_ANSWER_S = 60
_ENDED = ("exited", "created", "dead")


def remove_ended(name: str, identity: str, folder: Path) -> str:
    """Remove an exited container whose deployment, once in ``folder``, is gone.

    By its id: another container may get the name. The engine itself refuses while it runs.
    """
    if has_state(folder):
        raise KitError(f"container {name} belongs to a deployment again")
    with closing(connect()) as client:
        try:
            with suppress(NotFound):
                client.api.remove_container(identity, force=False, v=True)
        except (APIError, requests.RequestException) as error:
            raise KitError(f"container {name} cannot be removed: {first_line(error)}") from None
    return f"removed container {name}"


def built_here() -> dict[str, str]:
    """Return the ids of the images that this checkout has built, by name."""
    artefacts = read_manifest(DIST).artefacts
    return {each.name: each.sha256 for each in artefacts if each.kind == "image"}


def is_rootless(info: dict[str, Any]) -> bool:
    """Return whether an engine runs without root, from its answer to ``/info``."""
    return any("rootless" in option for option in info.get("SecurityOptions") or ())


def docker_in_words(version: dict[str, Any], info: dict[str, Any]) -> str:
    """Return one line about an engine, from its answers to ``/version`` and ``/info``."""
    names = [component["Name"] for component in version.get("Components", [])]
    name = "podman" if "Podman Engine" in names else "Docker"
    rootless = ", rootless" if is_rootless(info) else ""
    runtimes = ", NVIDIA runtime" if "nvidia" in (info.get("Runtimes") or {}) else ""
    return (
        f"{name} {version['Version']} (API {version['ApiVersion']}), storage {info['Driver']} in "
        f"{info['DockerRootDir']}, cgroup v{info.get('CgroupVersion', '1')}{rootless}{runtimes}"
    )


def readable_in_image(file: Path) -> bool:
    """Return whether the user of the kit's image, 1000 in group 0, may read a file."""
    facts = file.stat()
    return bool(
        facts.st_mode & stat.S_IROTH
        or (facts.st_mode & stat.S_IRGRP and facts.st_gid == 0)
        or (facts.st_mode & stat.S_IRUSR and facts.st_uid == IMAGE_USER)
    )


def may_raise_limits() -> bool:
    """Return whether an engine of root's can lift a container's limit on locked memory.

    One that runs without CAP_SYS_RESOURCE itself, as in a container, cannot.
    """
    with suppress(OSError):
        for line in Path("/proc/1/status").read_text(encoding="ascii").splitlines():
            if line.startswith("CapBnd:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def _asked(client: docker.DockerClient, image: str) -> dict[str, str]:
    """Return what the server in an image without labels says about itself, as NVIDIA's label."""
    program, *words = asking()
    container = client.containers.create(
        image, words, entrypoint=[program], network_mode="none", cap_drop=["ALL"]
    )
    try:
        with suppress(APIError):  # there is no such program
            container.start()
            container.wait(timeout=_ANSWER_S)
        server = version_in(container.logs().decode(errors="replace"))
    finally:
        container.remove(force=True)
    return {STOCK_LABEL: server} if server is not None else {}


def asked_tag(name: str) -> Reference | None:
    """Return the tag that an image is asked for by; None: by its digest, which nobody can move."""
    if name.startswith("sha256:"):
        return None
    asked = parse_reference(name)
    return None if asked.digest else replace(asked, tag=asked.tag or "latest")


class DockerEngine(ContainerEngine):
    """Runs tritonserver in a container of the Docker engine."""

    name = "docker"
    reason = "its image is here"
    server_type = ContainerServer
    command = staticmethod(run_command)
    isolated = True
    shares_memory = True

    @cached_property
    def image(self) -> ImageInUse:
        deployment, flavours = self.deployment, self.resolved.fitting_flavours
        remedy = f"numlkit build --target image --flavour {flavours[0]}"
        names = [image_name(self.resolved.release.release, flavour) for flavour in flavours]
        if deployment.image or deployment.env == "packed":
            names = [deployment.image or stock_image(deployment.triton)]
            remedy = f"docker pull {names[0]}, or docker load it"
        if names[0].endswith(".sif"):
            remedy = "--engine apptainer, which starts .sif files"
        with engine_errors(), closing(connect()) as client:
            for name in names:
                # Who else builds on this engine gives its image the same name.
                built = built_here().get(name, name)
                for asked in dict.fromkeys((built, name)):
                    with suppress(ImageNotFound):
                        return replace(self._look_up(client, name, asked), instead=asked != built)
        raise LaunchError(f"the Docker engine has no image {names[0]}", remedy)

    def _look_up(self, client: docker.DockerClient, name: str, asked: str) -> ImageInUse:
        """Return the image ``name``, which the engine is asked for by that name or an id."""
        image = client.images.get(asked)
        labels = dict(image.labels)
        if self.deployment.env == "packed" and not {STOCK_LABEL, TRITON_LABEL} & set(labels):
            labels |= _asked(client, str(image.id))
        return image_in_use(name, str(image.id), labels, self.resolved)

    def with_verified_image(self, signer: Signer) -> ContainerEngine:
        """Check the image's signature in its registry; return the engine for it by its digest."""
        image = self.image
        with engine_errors(), closing(connect()) as client:
            attributes = client.images.get(image.digest).attrs
        found = [parse_reference(text) for text in attributes.get("RepoDigests") or ()]
        problem: KitError | None = None
        # The requested one first; elsewhere others may have signed the same image.
        for reference in sorted(found, key=lambda one: not image.name.startswith(one.name)):
            try:
                verify_image(reference, signer)
            except (SignatureError, UncheckedError) as error:
                problem = problem or error
                continue
            tag = asked_tag(image.name)
            if tag is not None and tag.name in {each.name for each in found}:
                verify_tag(tag, reference, signer)
            named = self.deployment.model_copy(update={"image": str(reference)})
            return DockerEngine(replace(self.resolved, deployment=named))
        if problem is not None:
            raise problem
        publish = "numlkit publish docker://HOST/REPOSITORY --sign KEY"
        cause = f"{image.name} was not pulled from a registry, where signatures are kept"
        raise SignatureError(cause, f"{publish}, then --image HOST/REPOSITORY:TAG")

    def copy_out(self, paths: Sequence[Path], target: Path) -> None:
        target.mkdir(parents=True)
        with closing(connect()) as client, unstarted(client, self.image.digest) as container:
            for path in paths:
                chunks, _ = client.api.get_archive(container, str(path))
                unpack(as_stream(chunks), target)

    def process(
        self, folder: DeploymentFolder, ports: Ports, identity: str, prefix: str
    ) -> tuple[tuple[str, ...], dict[str, str], ContainerPlan]:
        arguments, variables, container = super().process(folder, ports, identity, prefix)
        own = {"user": self.user, "groups": self.groups, "limits": self.limits}
        return arguments, variables, container.model_copy(update=own)

    @cached_property
    def _rootless(self) -> bool:
        with engine_errors(), closing(connect()) as client:
            return is_rootless(client.info())

    @property
    def user(self) -> str | None:
        if os.getuid():
            # Root in a rootless engine's container is whom the engine belongs to.
            return "0:0" if self._rootless else f"{os.getuid()}:{os.getgid()}"
        # A stock image's own user is root.
        return f"{IMAGE_USER}:0" if self.deployment.env == "packed" else None

    @property
    def groups(self) -> tuple[int, ...]:
        # What this user may read, such as a key of the group ssl-cert, the server must, too.
        if os.getuid() == 0 or self._rootless:
            return ()
        return tuple(sorted({*os.getgroups()} - {os.getgid()}))

    @property
    def limits(self) -> tuple[tuple[str, int], ...]:
        limits = (("stack", _STACK_BYTES),)
        raises = may_raise_limits() and not self._rootless
        return (("memlock", -1), *limits) if raises else limits

    def prepare(self, say: Say) -> None:
        """Also check that the server in the container can read what it needs."""
        super().prepare(say)
        if os.getuid() == 0:
            closed = [str(file) for file in self._shown() if not readable_in_image(file)]
            if closed:
                user, paths = "the server's user in the container", shlex.join(closed)
                cause = f"{', '.join(closed)} cannot be read by {user} (1000, group 0)"
                raise DeploymentError(cause, f"chgrp 0 {paths}; chmod g+r {paths}")

    def _shown(self) -> list[Path]:
        # The kit's own as well: a clone has them as the umask then was.
        shown = [path for model in self.models() for path in model.copies.values()]
        shown += self.resolved.site_environments
        if self.resolved.uses_archive:
            shown.append(self.resolved.archive)
        if self.deployment.tls is not None:
            shown += self.deployment.tls.model_dump(exclude_none=True).values()
        return shown

    def require_room(self, extracted: int) -> None:
        """Check the memory: a container's /tmp is in it."""
        what = f"the packed environments, extracted, take {extracted / 1e6:.0f} MB of memory; "
        remedy = "use the kit's image, in which the environment is unpacked (no --env packed)"
        free, limit = psutil.virtual_memory().available, self.deployment.memory
        if extracted > free:
            raise LaunchError(f"{what}{free / 1e6:.0f} MB is free", remedy)
        if limit is not None and extracted > limit:
            cause = f"{what}the container's limit is {limit / 1e6:.0f} MB"
            raise LaunchError(cause, f"raise --memory, or {remedy}")

    @classmethod
    def clear(cls, folder: DeploymentFolder, state: DeploymentState) -> None:
        if state.container is not None:
            remove_container(state.container)

    @classmethod
    def server_owners(cls) -> Collection[int]:
        return (os.getuid(), IMAGE_USER) if os.getuid() == 0 else (os.getuid(),)

    @classmethod
    def serves(cls, folder: DeploymentFolder, state: DeploymentState) -> bool:
        """Return whether the server is alive, or its container, which may be on another host."""
        if super().serves(folder, state):
            return True
        return state.container is not None and container_runs(state.container)

    @cached_property
    def _storage(self) -> Path | None:
        with suppress(KitError), closing(connect()) as client:
            return storage_folder(client)
        return None

    def rooms(self) -> list[Room]:
        if self._storage is None:
            return super().rooms()
        data_root = "set data-root in /etc/docker/daemon.json"
        container = Room(self._storage, 100 * 10**6, "the container", data_root, ours=False)
        return [*super().rooms(), container]

    def launch_findings(self) -> Iterator[Finding]:
        given = self.deployment.container_shm_bytes
        if given < self.shared_bytes:
            needed = f"the model instances need {size(self.shared_bytes)}"
            detail = f"the container has {size(given)} of shared memory; {needed}"
            yield Finding("problem", ROOM, detail, "--shm-size 1g, or fewer --instances")

    def findings(self, level: Level) -> Iterator[Finding]:
        if not (shutil.which("docker") or _SOCKET.exists() or os.environ.get("DOCKER_HOST")):
            yield self.absent(level, "sudo scripts/install_container_tools (Debian, Ubuntu)")
            return
        try:
            with closing(connect()) as client:
                version, info = client.version(), client.info()
        except KitError as error:
            yield wrong(self.subject, error, level)
            return
        yield ok(self.subject, docker_in_words(version, info))
        yield from self.limit_findings(info, level)
        yield from self.runtime_findings(info)
        yield from self.image_findings(level)

    def limit_findings(self, info: dict[str, Any], level: Level) -> Iterator[Finding]:
        """Return the requested limits that the engine would silently ignore."""
        for flag, asked, able in (
            ("--memory", self.deployment.memory, info.get("MemoryLimit", True)),
            ("--cpus", self.deployment.cpus, info.get("CpuCfsQuota", True)),
        ):
            if asked is not None and not able:
                detail = f"the engine cannot enforce {flag}: it has no cgroup for that here"
                rootless = "rootless engines need cgroup v2 and delegated controllers"
                yield Finding(level, self.subject, detail, f"leave out {flag}; {rootless}")

    def runtime_findings(self, info: dict[str, Any]) -> Iterator[Finding]:
        """Warn if the engine does not seem able to pass requested GPUs to containers.

        It may be able to anyway: an engine that finds NVIDIA's hook on its path needs no runtime.
        """
        able = "nvidia" in (info.get("Runtimes") or {}) or info.get("DiscoveredDevices")
        if self.deployment.flavour == "gpu" and not able:
            detail = "the engine lists no GPU runtime"
            yield Finding("warning", self.subject, detail, INSTALL_TOOLKIT)

    @classmethod
    def leftovers(cls) -> Iterator[Finding]:
        """Return this user's containers whose deployment has no state.

        None if no Docker engine answers: `findings` reports that.
        """
        try:
            with closing(connect()) as client:
                # The engine's raw answer: the SDK would ask again about each of them.
                found = client.api.containers(all=True, filters={"label": DEPLOYMENT_LABEL})
        except (KitError, DockerException, requests.RequestException):
            return
        own = re.compile(rf"numlkit-{os.getuid()}-[0-9a-f]{{8}}-.+")
        for container in found:
            name = container["Names"][0].lstrip("/")
            folder = Path(container["Labels"].get(STATE_LABEL, "/"))
            if not own.fullmatch(name) or has_state(folder):
                continue
            detail = f"container {name} belongs to no deployment ({container['State']})"
            if container["State"] in _ENDED:
                fix = partial(remove_ended, name, container["Id"], folder)
                yield Finding("problem", LEFTOVERS, detail, FIX, fix)
            else:
                remedy = f"docker rm --force {name}, if nobody uses it"
                yield Finding("problem", LEFTOVERS, detail, remedy)
