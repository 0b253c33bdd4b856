"""What a launch does, rendered before it is done: pure data."""

import csv
import io
from pathlib import Path

from pydantic import BaseModel

from deploy.deployment.deployment import Deployment, EngineName, Ports


class Mount(BaseModel, frozen=True):
    """A file or folder of the host, seen in the container."""

    source: Path
    target: Path
    writable: bool = False


def mount_field(mount: Mount, target: str, read_only: str) -> str:
    """Return a mount as Docker's and Apptainer's ``--mount`` read it: a line of CSV.

    Args:
        target: What the program calls the mount's place in the container.
        read_only: What it calls a mount that cannot be written.
    """
    fields = ["type=bind", f"source={mount.source}", f"{target}={mount.target}"]
    if not mount.writable:
        fields.append(read_only)
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def image_in_words(name: str, digest: str, release: int | None) -> str:
    """Return what a server runs, as in ``release 3: /cvmfs/numl/3/numl.sif (sha256:0123...)``."""
    number = f"release {release}: " if release is not None else ""
    short = f" (sha256:{digest.removeprefix('sha256:')[:12]})" if digest else ""
    return f"{number}{name}{short}"


class Broken(BaseModel, frozen=True):
    """Why a model is not served, though others are."""

    cause: str
    remedy: str | None = None


class ContainerPlan(BaseModel, frozen=True):
    """The container around a server.

    Attributes:
        named: The image's name, or the path of the .sif, as it was found.
        image: The image's id or digest in the Docker engine, or the path of a .sif: what it names
            never changes, so that a server that is started again is the same one.
        digest: That id, or the sha256 of the .sif; empty: a stock .sif, which is not read.
        release: Its number, if a signed or published statement gives it one.
        user: ``uid:gid`` of its processes; None: the image's own user, or the calling user.
        groups: Further groups of its processes, by number.
        limits: Its resource limits (ulimit) that differ from the engine's defaults, by name.
        extracted_bytes: What the server extracts to /tmp: packed environments.
        health: The command of the engine's own health check; empty: none.
    """

    named: str = ""
    image: str
    name: str
    user: str | None = None
    groups: tuple[int, ...] = ()
    mounts: tuple[Mount, ...]
    limits: tuple[tuple[str, int], ...] = ()
    gpus: tuple[str, ...] = ()
    extracted_bytes: int = 0
    digest: str = ""
    release: int | None = None
    health: tuple[str, ...] = ()


class LaunchPlan(BaseModel, frozen=True):
    """Everything a launch does, rendered; ``--dry-run`` shows it, the supervisor runs it.

    Attributes:
        http_listen: Address for HTTP and metrics.
        arguments: The server's command line, as it is in the container if there is one.
        variables: The server's whole environment; in a container, what is added to it.
        instances: How many processes serve each model.
        shm_prefix: Start of the names of its shared memory regions.
        identity: What the server calls itself.
        artefact: Digest of execution environment and model files.
        broken: The models that are left out, by name.
        parent: The process whose end ends the deployment, and removes its folder; None: it stays.
    """

    deployment: Deployment
    engine: EngineName
    ports: Ports
    http_listen: str = "127.0.0.1"
    arguments: tuple[str, ...]
    variables: dict[str, str]
    repository: Path
    instances: dict[str, int]
    shm_prefix: str
    identity: str
    artefact: str
    log: Path
    container: ContainerPlan | None = None
    broken: dict[str, Broken] = {}
    parent: int | None = None

    @property
    def contained(self) -> ContainerPlan:
        """The container, in a plan that has one."""
        assert self.container is not None
        return self.container
