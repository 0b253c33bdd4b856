"""What is known about a running deployment: JSON files that other programs may read."""

import os
import platform
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ValidationError

from deploy.deployment.deployment import EngineName, Ports, Tls
from deploy.deployment.plan import Broken, LaunchPlan, image_in_words
from deploy.host.errors import DeploymentError, KitError, NotRunningError
from deploy.host.files import locked, write_atomically
from deploy.host.paths import deployments_folder

Phase = Literal["starting", "ready", "healing", "degraded", "failed", "stopping"]

# Where they are among the fields that _status returns.
_STATE, _STARTED = 0, 19


class ProcessId(BaseModel, frozen=True):
    """A process that cannot be confused with a later one with the same number.

    Attributes:
        started: When it started, in clock ticks since boot: unlike a time of day, it does not
            change when the clock is set.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Return the identity of the process with the number ``pid``.

        Raises:
            psutil.NoSuchProcess: If there is none.
        """
        return cls(pid=pid, started=int(_status(pid)[_STARTED]))

    def process(self) -> psutil.Process | None:
        """Return the process if it is still alive (a zombie is not)."""
        with suppress(psutil.NoSuchProcess):
            if self._state() not in (None, "Z", "X"):
                return psutil.Process(self.pid)
        return None

    def is_running(self) -> bool:
        """Return whether the process has neither exited nor been stopped by a signal."""
        return self._state() not in (None, "Z", "X", "x", "T", "t")

    def _state(self) -> str | None:
        with suppress(psutil.NoSuchProcess):
            status = _status(self.pid)
            if int(status[_STARTED]) == self.started:
                return status[_STATE]
        return None


class Surroundings(BaseModel, frozen=True):
    """What existed just before a server was started: none of it is that server's.

    Attributes:
        folders: Scratch folders of Python backends.
        processes: Processes that run a Python backend.
    """

    folders: tuple[Path, ...]
    processes: tuple[ProcessId, ...]


def _status(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` (proc(5)) from the third on."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/stat").exists():
            cause = "/proc is not mounted here, which lists the processes"
            raise KitError(cause, "as root: mount -t proc proc /proc") from None
        raise psutil.NoSuchProcess(pid) from None
    # The second field, the program's name in brackets, may hold any bytes, brackets too.
    return content.rpartition(b")")[2].decode("ascii").split()


class DeploymentState(BaseModel, frozen=True):
    """The state file of a deployment.

    Attributes:
        node: The host it runs on; the folder may be shared between hosts.
        host: The address that clients on this host use for gRPC.
        http_host: The address that they use for HTTP and metrics.
        broken: Those that could not be, where the deployment keeps going without them.
        artefact: Digest of execution environment and model files.
        log_start: Bytes in the log that earlier servers have written.
        server: The server's own process on this host, once started; in a container, too.
        container: The container's name, or the instance's; None without one.
        image: The image's name, or the path of the .sif that it is a copy of.
        digest: The image's id, or the sha256 of the .sif.
        release: Its number, if a release statement gives it one.
        heals: How often dead stubs were replaced.
        restarts: How often a dead server was replaced.
        seconds_to_ready: From the server's start until the last model answered correctly.
        scratch: Folders the server made outside the kit's folders.
        before: Until ``scratch`` is known: what existed before the server was started.
    """

    name: str
    engine: EngineName
    node: str
    host: str
    http_host: str = "127.0.0.1"
    ports: Ports
    models: tuple[str, ...]
    broken: dict[str, Broken] = {}
    artefact: str
    log: Path
    log_start: int = 0
    phase: Phase
    supervisor: ProcessId
    server: ProcessId | None = None
    container: str | None = None
    image: str | None = None
    digest: str | None = None
    release: int | None = None
    heals: int = 0
    restarts: int = 0
    seconds_to_ready: float | None = None
    scratch: tuple[Path, ...] = ()
    before: Surroundings | None = None
    cause: str | None = None
    remedy: str | None = None
    tls: Tls | None = None

    @property
    def runs(self) -> str | None:
        """The image that runs, in words; None: files of the checkout."""
        if self.image is None:
            return None
        return image_in_words(self.image, self.digest or "", self.release)

    def url(self, protocol: Literal["http", "grpc"]) -> str:
        if protocol == "http":
            return f"http://{host_port(self.http_host, self.ports.http)}"
        return f"grpc{'s' if self.tls else ''}://{host_port(self.host, self.ports.grpc)}"


class DeploymentFolder:
    """The folder of one named deployment."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.path = (root or deployments_folder()) / name
        self.plan_file = self.path / "plan.json"
        self.state_file = self.path / "state.json"
        self.lock_file = self.path / "lock"
        self.launch_lock = self.path / "launch.lock"
        self.repository = self.path / "model_repository"
        self.log = self.path / "server.log"
        self.supervisor_log = self.path / "supervisor.log"

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Keep others from starting the deployment; remove the folder if it is left empty."""
        with locked(self.launch_lock):
            try:
                yield
            finally:
                if [*self.path.glob("*")] == [self.launch_lock]:
                    self.launch_lock.unlink()
                    # A waiter may be in it by now, with its own lock file.
                    with suppress(OSError):
                        self.path.rmdir()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Take turns as a command that starts the deployment, which ``down`` may end."""
        with self.taking_turns():
            # Found by `starter` for as long as the lock is held.
            self.launch_lock.write_text(ProcessId.of(os.getpid()).model_dump_json())
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    os.truncate(self.launch_lock, 0)

    def starter(self) -> psutil.Process | None:
        """Return the command that is starting the deployment on this host, if one is."""
        with suppress(OSError, ValidationError):
            return ProcessId.model_validate_json(self.launch_lock.read_bytes()).process()
        return None

    def state(self) -> DeploymentState | None:
        """Return the state file's content, or None if there is no such file.

        Raises:
            DeploymentError: If the file cannot be read: what runs cannot be known then.
        """
        try:
            return DeploymentState.model_validate_json(self.state_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a state file"
            look = f"pgrep -af {shlex.quote(str(self.path))}"
            remedy = f"stop what runs there ({look}), then remove the file"
            raise DeploymentError(f"{self.state_file}: {reason}", remedy) from None

    def state_here(self) -> DeploymentState | None:
        """Return the state of a deployment on this host, or None if there is none.

        Raises:
            DeploymentError: If it runs on another host, or the file cannot be read.
        """
        state = self.state()
        if state is not None and state.node != platform.node():
            cause = f"deployment {self.name} runs on {state.node}; this is {platform.node()}"
            gone = f"remove {self.path} if that host is gone"
            raise DeploymentError(cause, f"run it there, use another --name here, or {gone}")
        return state

    def plan(self) -> LaunchPlan | None:
        """Return the plan of the last launch, or None."""
        with suppress(OSError, ValidationError):
            return LaunchPlan.model_validate_json(self.plan_file.read_bytes())
        return None

    def write_state(self, state: DeploymentState) -> None:
        write_atomically(self.state_file, state.model_dump_json(indent=2) + "\n")

    def write_plan(self, plan: LaunchPlan) -> None:
        write_atomically(self.plan_file, plan.model_dump_json(indent=2) + "\n")

    def require_state(self) -> DeploymentState:
        """Return the state of a deployment on this host; NotRunningError if there is none."""
        state = self.state_here()
        if state is None:
            others = ", ".join(known_deployments())
            remedy = f"--name with one of: {others}" if others else f"numlkit up --name {self.name}"
            raise NotRunningError(f"no deployment named {self.name!r}", remedy)
        return state


def known_deployments() -> tuple[str, ...]:
    return tuple(sorted(p.parent.name for p in deployments_folder().glob("*/state.json")))


def starting_deployments() -> tuple[str, ...]:
    """Return the names of those that commands on this host are starting."""
    folders = (DeploymentFolder(p.parent.name) for p in deployments_folder().glob("*/launch.lock"))
    return tuple(sorted(folder.name for folder in folders if folder.starter() is not None))


def default_endpoint(protocol: Literal["http", "grpc"]) -> str | None:
    """Return the URL of the one running deployment, or None if there is none."""
    ready = []
    for name in known_deployments():
        try:
            state = DeploymentFolder(name).state_here()
        except DeploymentError:
            continue
        if state is not None and state.supervisor.process() is not None:
            ready.append(state)
    if len(ready) > 1:
        names = ", ".join(state.name for state in ready)
        cause = f"several deployments are running: {names}"
        raise DeploymentError(cause, "--name with one of them")
    return ready[0].url(protocol) if ready else None


def reachable_host(listen: str) -> str:
    """Return the address at which clients on this host reach a server listening on ``listen``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def is_loopback(listen: str) -> bool:
    """Return whether only this host reaches a server that listens there."""
    return ip_address(listen.partition("%")[0]).is_loopback


def host_port(host: str, port: int) -> str:
    """Return ``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
