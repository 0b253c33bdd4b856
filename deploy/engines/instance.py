"""A server in an Apptainer instance.

An instance outlives the server in it. Apptainer writes its log files below the home folder by
default; here that folder is the deployment's own, and the files are hard links to the server's log.
"""

import json
import os
import platform
import pwd
import shlex
import shutil
import subprocess
from pathlib import Path

import psutil

from deploy.deployment.plan import LaunchPlan, Mount, mount_field
from deploy.engines.container import has_state
from deploy.engines.kept import check_kept
from deploy.engines.server import Note, Server, await_server, end_process, servers
from deploy.host.errors import KitError, LaunchError
from deploy.host.failures import complaint, diagnose
from deploy.host.files import nobody_at_work

_INIT = "appinit"  # what Apptainer calls an instance's first process
# What Apptainer needs of the caller's environment; APPTAINER_BIND and its like are the user's.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR")


class InstanceServer(Server):
    """An instance started for the server and stopped with it."""

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan, note)
        self._name, self._folder = plan.contained.name, plan.log.parent
        if plan.contained.digest:
            check_kept(Path(plan.contained.image), plan.contained.digest)
        if plan.contained.extracted_bytes:
            shutil.rmtree(scratch_folder(self._folder), ignore_errors=True)
            scratch_folder(self._folder).mkdir(mode=0o700)
        _join_logs(plan.log, self._name)
        done = _apptainer(instance_command(plan), self._folder)
        # The first has Apptainer's own messages, the second the server's.
        known = diagnose(f"{done.stderr}\n{self.output()}")
        if done.returncode == 0 and known is not None and plan.contained.gpus:
            # Apptainer only warns about a GPU that it cannot pass through.
            stop_instance(self._name, self._folder)
            raise known
        if done.returncode != 0:
            cause = f"apptainer cannot start the instance: {complaint(done.stderr)}"
            raise known or LaunchError(cause, f"read its log: {plan.log}")
        self.identity = await_server(lambda: next(servers(plan.identity), None), self._runs)
        self._note(server=self.identity)

    def _runs(self) -> bool:
        # The instance outlives its server; one that has exited has said why.
        starting = servers(self._plan.identity, starting=True)
        return not self.output().strip() or next(starting, None) is not None

    def stop(self) -> None:
        process = self._process()
        if process is not None:
            end_process(process)
        stop_instance(self._name, self._folder)


def config_folder(folder: Path) -> Path:
    """Return the folder in which Apptainer keeps its records of a deployment's instance."""
    return folder / "apptainer"


def scratch_folder(folder: Path) -> Path:
    """Return the instance's /tmp; Apptainer's default is in memory, too small to extract to."""
    return folder / "scratch"


def instance_command(plan: LaunchPlan) -> tuple[str, ...]:
    container = plan.contained
    mounts = list(container.mounts)
    if container.extracted_bytes:
        scratch = scratch_folder(plan.log.parent)
        mounts.append(Mount(source=scratch, target=Path("/tmp"), writable=True))
    return (
        "apptainer",
        "instance",
        "run",
        # Nothing from the host unless named: no home, no environment, its own /tmp.
        "--containall",
        "--no-privs",
        *(["--nv"] if container.gpus else []),
        *(f"--mount={mount_field(mount, 'destination', 'ro')}" for mount in mounts),
        *(f"--env={name}={value}" for name, value in plan.variables.items()),
        container.image,
        container.name,
        *plan.arguments,
    )


def instance_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(config_folder(folder).glob("instances/app/*/*/*/*.json")))


def stop_instance(name: str, folder: Path) -> None:
    """Stop the instance ``name``, if there is one, and remove its /tmp."""
    done = _apptainer(("apptainer", "instance", "stop", "--force", name), folder)
    if done.returncode != 0 and "no instance found" not in done.stderr:
        raise LaunchError(
            f"instance {name} cannot be stopped: {complaint(done.stderr)}",
            f"APPTAINER_CONFIGDIR={shlex.quote(str(config_folder(folder)))} "
            "apptainer instance list",
        )
    shutil.rmtree(scratch_folder(folder), ignore_errors=True)


def _apptainer(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables["APPTAINER_CONFIGDIR"] = str(config_folder(folder))
    try:
        return subprocess.run(
            command, cwd="/", env=variables, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise LaunchError(f"apptainer cannot be started: {error.strerror}") from None


def _join_logs(log: Path, name: str) -> None:
    """Hard-link the server's log to where Apptainer writes an instance's output."""
    user = pwd.getpwuid(os.getuid()).pw_name
    folder = config_folder(log.parent) / "instances" / "logs" / platform.node() / user
    folder.mkdir(parents=True, exist_ok=True)
    log.touch()  # someone may have removed it
    for ending in ("out", "err"):
        (folder / f"{name}.{ending}").unlink(missing_ok=True)
        (folder / f"{name}.{ending}").hardlink_to(log)


def stop_unused(file: Path, folder: Path) -> str:
    """Stop an instance without a server in it, whose deployment, once in ``folder``, is gone."""
    with nobody_at_work([folder / "launch.lock"]):
        if has_state(folder) or serves(file):
            raise KitError(f"instance {file.stem} is in use again")
        if init_of(file) is not None:
            stop_instance(file.stem, folder)
    return f"stopped instance {file.stem}"


def init_of(file: Path) -> psutil.Process | None:
    """Return an instance's first process, which keeps it alive; None if it is dead.

    Its pid may have been reused by another program, which Apptainer would then stop.
    """
    try:
        process = psutil.Process(int(json.loads(file.read_bytes())["pid"]))
        calls_itself = " ".join([process.name(), *process.cmdline()])
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if _INIT in calls_itself else None


def serves(file: Path) -> bool:
    process = init_of(file)
    try:
        below = process.children(recursive=True) if process is not None else []
        return any(child.name() == "tritonserver" for child in below)
    except psutil.NoSuchProcess:
        return False
