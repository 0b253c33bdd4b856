"""A tritonserver in an Apptainer instance.

An instance outlives the server in it, and its own log files lie in Apptainer's folder, which
is below the home folder by default: here it is the deployment's own, and the log files are
other names of the server's log.
"""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import shutil
import subprocess
from pathlib import Path

from deploy.engines.base import (
    await_server,
    end_process,
    is_starting,
    process_with_identity,
)
from deploy.errors import LaunchError
from deploy.failures.apptainer import complaint
from deploy.failures.table import Diagnosis, diagnose, last_words
from deploy.plan import LaunchPlan, Mount, mount_field
from deploy.server.admin_key import make_key
from deploy.supervisor.server import Note, Server

# What Apptainer needs of the caller's environment; APPTAINER_BIND and its like are the user's.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR")


class InstanceServer(Server):
    """An instance that is made for the server and stopped with it.

    Args:
        plan: What to start.
        note: Is told the server's process.

    Raises:
        LaunchError: If Apptainer does not start it.
    """

    def __init__(self, plan: LaunchPlan, note: Note) -> None:
        super().__init__(plan)
        self._key = make_key(plan.key_file)
        assert plan.container is not None
        self._name, self._folder = plan.container.name, plan.log.parent
        if plan.container.extracted_bytes:
            shutil.rmtree(scratch_folder(self._folder), ignore_errors=True)
            scratch_folder(self._folder).mkdir(mode=0o700)
        _join_logs(plan.log, self._name)
        done = _apptainer(instance_command(plan), self._folder)
        # What is said before the instance is one is in the one, what it says itself in the other.
        known = diagnose(f"{done.stderr}\n{self.output()}")
        if done.returncode == 0 and known is not None and plan.container.gpus:
            # To Apptainer a GPU that it cannot hand on is worth a warning; a server that was to
            # have it is of no use without.
            stop_instance(self._name, self._folder)
            raise LaunchError(known.cause, known.remedy)
        if done.returncode != 0:
            known = known or Diagnosis(
                f"apptainer does not start the instance: {complaint(done.stderr)[:300]}",
                f"read its log: {plan.log}",
            )
            raise LaunchError(known.cause, known.remedy)
        self.identity = await_server(lambda: process_with_identity(plan.identity), self._runs)
        note(server=self.identity)

    def _runs(self) -> bool:
        # The instance runs on without a server; one that has ended has said why.
        return not self.output().strip() or is_starting(self._plan.identity)

    def key(self) -> str | None:
        """Return the key that it was given."""
        return self._key

    def stop(self) -> None:
        """Stop server and instance; what they wrote is gone with the instance."""
        process = self.identity.process() if self.identity is not None else None
        if process is not None:
            end_process(process)
        stop_instance(self._name, self._folder)


def config_folder(folder: Path) -> Path:
    """Return the folder in which Apptainer keeps what it knows of a deployment's instance."""
    return folder / "apptainer"


def scratch_folder(folder: Path) -> Path:
    """Return the folder of a deployment's that is the instance's /tmp.

    Apptainer's own is in memory, and too small for an environment to be extracted there.
    """
    return folder / "scratch"


def instance_command(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the command that starts the planned instance, word by word."""
    container = plan.container
    assert container is not None
    mounts = list(container.mounts)
    if container.extracted_bytes:
        scratch = scratch_folder(plan.log.parent)
        mounts.append(Mount(source=scratch, target=Path("/tmp"), writable=True))
    return (
        "apptainer",
        "instance",
        "run",
        # Nothing of the host but what is named: no home, no environment, its own /tmp.
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
    """Return the files in which Apptainer keeps what it knows of a deployment's instances."""
    return tuple(sorted(config_folder(folder).glob("instances/app/*/*/*/*.json")))


def stop_instance(name: str, folder: Path) -> None:
    """Stop the instance ``name`` and remove its /tmp; one that is not there is no mistake.

    Args:
        name: Its name.
        folder: The deployment's folder.

    Raises:
        LaunchError: If it cannot be stopped.
    """
    done = _apptainer(("apptainer", "instance", "stop", "--force", name), folder)
    if done.returncode != 0 and "no instance found" not in done.stderr:
        raise LaunchError(
            f"instance {name} cannot be stopped: {last_words(done.stderr)[:300]}",
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
    """Give the server's log the names under which Apptainer writes what an instance says."""
    user = pwd.getpwuid(os.getuid()).pw_name
    folder = config_folder(log.parent) / "instances" / "logs" / platform.node() / user
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("out", "err"):
        (folder / f"{name}.{ending}").unlink(missing_ok=True)
        (folder / f"{name}.{ending}").hardlink_to(log)
