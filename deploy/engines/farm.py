"""Servers as batch jobs: each runs on some node, enters the registry, and is renewed in time.

A farm's folder must be on a file system that the nodes share. ``farm.json`` is there for as long as
it shall go on; then it is ``ending.json``, until its jobs have ended. A server that is to be
renewed submits the next job; where nodes cannot, it asks a keeper to, which is a job on the
submitting host.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from deploy.client.endpoint import Endpoint
from deploy.client.registry import Registry
from deploy.client.transport import TritonTransport
from deploy.deployment.state import DeploymentFolder
from deploy.host.batch.jobs import BatchSystem, Job, Resources
from deploy.host.batch.settings import SYSTEMS, BatchSettings
from deploy.host.errors import DeploymentError, KitError, LaunchError
from deploy.host.files import write_atomically
from deploy.host.paths import deployments_folder

_FILE, _ENDING = "farm.json", "ending.json"
_SERVERS, _JOBS = "servers", "jobs"
_RENEWALS, _RENEWED, _REPLACED = "renewals", "renewed", "replaced"
_NUMLKIT = Path(sys.executable).with_name("numlkit")
READY = "ready"
_LOOK_S = 0.5
_BY_THEMSELVES_S, _ENDS_S = 30.0, 120.0


class Farm(BaseModel, frozen=True):
    """Servers that run as batch jobs.

    Attributes:
        job: The name of all its jobs.
        words: What ``numlkit exec`` is told of each server, run in ``place``.
        numlkit: The command, on the nodes.
    """

    name: str
    job: str
    settings: BatchSettings
    servers: int
    words: tuple[str, ...]
    place: Path
    numlkit: Path = _NUMLKIT
    models: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return farm_folder(self.name)

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / _SERVERS)

    @property
    def system(self) -> BatchSystem:
        return SYSTEMS[self.settings.engine]()

    @property
    def goes_on(self) -> bool:
        """Whether it shall; also if the file system does not say, as it may again."""
        with suppress(OSError):
            try:
                (self.folder / _FILE).stat()
            except FileNotFoundError:
                return False
        return True

    def to_submit(self, servers: int, number: str, replaces: str = "") -> Job:
        """Return a job of so many servers; of the entry that it replaces, if it does.

        Args:
            number: Of the job, among all that this farm submits: its files' folder.
        """
        beside = self._python("farm_server")
        command = [str(self.numlkit), "exec", "--quiet", *self.words, "--", *beside]
        last = ['"$BEGUN"', f'{number}-"$TASK"', *filter(None, [replaces])]
        script = (
            f"cd {shlex.quote(str(self.place))}",
            f"exec {' '.join([shlex.join(command), *last])}",
        )
        folder = self.folder / _JOBS / number
        # The batch system's clock for the job runs during setup, too.
        setup = ("BEGUN=$(date +%s)", *self.settings.setup)
        needs = self.settings.model_copy(update={"setup": setup})
        return Job(self.job, servers, script, folder, needs)

    def keeper(self) -> Job | None:
        """Return the job that submits renewals; None: servers do, or nothing is renewed."""
        if not self.system.beside or self.settings.hours is None:
            return None
        script = (f"exec {shlex.join(self._python('farm_keeper'))}",)
        needs = Resources(options=self.system.beside, setup=self.settings.setup)
        return Job(f"{self.job}-keeper", 1, script, self.folder / _JOBS / "keeper", needs)

    def renew(self, entry: str) -> None:
        """Submit the job that replaces a server, or ask the keeper to.

        Raises:
            KitError: The batch system refuses it.
        """
        if self.system.beside:
            (self.folder / _RENEWALS / entry).touch()
        else:
            self.system.submit(self._renewal(entry))
        with suppress(OSError):  # it is submitted all the same
            self._renewed(entry).touch()

    def submit_renewals(self) -> None:
        """Submit what servers have asked the keeper for.

        Raises:
            KitError: The batch system refuses one; it can be tried again.
        """
        for asked in sorted(self.folder.glob(f"{_RENEWALS}/*")):
            self.system.submit(self._renewal(asked.name))
            asked.unlink()

    def was_renewed(self, entry: str) -> bool:
        """Return whether a job that replaces a server was submitted, or is asked for."""
        with suppress(OSError):
            return self._renewed(entry).exists()
        return False

    def takes_over(self, entry: str, by: str) -> bool:
        """Return whether a server is the one that replaces ``entry``: the first that asks is.

        It still is when its job has begun again, and no other is when it has ended.
        """
        file = self.folder / _REPLACED / entry
        try:
            with file.open("x", encoding="ascii") as out:
                out.write(by)
        except FileExistsError:
            return file.read_text(encoding="ascii") == by
        return True

    def _renewal(self, entry: str) -> Job:
        # A submission that seems to fail may be taken all the same: each try is another job.
        return self.to_submit(1, f"renewal-{entry}-{secrets.token_hex(2)}", entry)

    def _renewed(self, entry: str) -> Path:
        return self.folder / _RENEWED / entry

    def _python(self, module: str) -> list[str]:
        # -I: with -m alone, modules of the folder where it runs, which is the user's, come first.
        python = self.numlkit.with_name("python")
        return [str(python), "-I", "-m", f"deploy.engines.{module}", self.name, self.job]

    def write(self) -> None:
        """Write the farm's file.

        Raises:
            DeploymentError: It would name what is not UTF-8.
        """
        try:
            text = self.model_dump_json(indent=2)
        except ValueError:
            cause = f"farm {self.name}: a path in its words, or where they are typed, is not UTF-8"
            raise DeploymentError(cause, "rename it") from None
        for folder in (_RENEWALS, _RENEWED, _REPLACED):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / _FILE, text + "\n")


def farm_folder(name: str) -> Path:
    return deployments_folder() / name


def read_farm(name: str) -> Farm | None:
    """Return the farm of that name, also one whose end was broken off; None: there is none."""
    for file in (farm_folder(name) / _FILE, farm_folder(name) / _ENDING):
        try:
            return Farm.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError) as error:
            raise DeploymentError(f"{file}: not a farm's file") from error
    return None


def farm_of(name: str, job: str) -> Farm | None:
    """Return the farm that a job is of; None: it has ended, though another may have its name."""
    farm = read_farm(name)
    return farm if farm is not None and farm.job == job and farm.goes_on else None


def known_farms() -> tuple[str, ...]:
    paths = (path for file in (_FILE, _ENDING) for path in deployments_folder().glob(f"*/{file}"))
    return tuple(sorted({path.parent.name for path in paths}))


def start_farm(farm: Farm) -> Farm:
    """Submit the servers that are missing; return the farm, which may have been there.

    Raises:
        KitError: The batch system refuses them, or something else has that name.
    """
    # Two commands that start the same farm take turns; the second finds its jobs.
    with DeploymentFolder(farm.name).taking_turns():
        there = read_farm(farm.name)
        if DeploymentFolder(farm.name).state() is not None:
            remedy = f"another --name, or numlkit down --name {farm.name} first"
            raise DeploymentError(f"deployment {farm.name} is no farm of batch jobs", remedy)
        if there is not None and there != farm.model_copy(update={"job": there.job}):
            remedy = f"numlkit down --name {farm.name} first"
            raise LaunchError(f"farm {farm.name} is running with different settings", remedy)
        farm = there or farm
        tasks = farm.system.listed(farm.job)
        if not tasks:
            for entry in farm.registry.entries():  # of servers that were killed
                farm.registry.leave(entry)
        missing = farm.servers - len(tasks)
        jobs = [farm.to_submit(missing, f"up-{int(time.time())}")] if missing > 0 else []
        keeper = farm.keeper()
        if keeper is not None and not farm.system.listed(keeper.name):
            jobs.insert(0, keeper)
        farm.write()
        submitted: list[str] = []
        try:
            for job in jobs:
                farm.system.submit(job)
                submitted.append(job.name)
        except BaseException:
            if there is None:
                with suppress(KitError):  # what is not cancelled is left to down, with the farm
                    for name in submitted:
                        farm.system.cancel(name)
                    shutil.rmtree(farm.folder, ignore_errors=True)
            raise
    return farm


def await_servers(farm: Farm, *, seconds: float, say: Callable[[str], None]) -> int:
    """Wait until all servers are there, or for a while; return how many are.

    Raises:
        LaunchError: Jobs have ended, with the last words of one.
    """
    deadline, said = time.monotonic() + seconds, ""
    while True:
        try:
            tasks = [task for _, task in farm.system.listed(farm.job)]
        except KitError:  # it may be silent for a while
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
            continue
        there = len(farm.registry.entries())
        if there >= farm.servers or time.monotonic() > deadline:
            return there
        if not tasks:
            raise LaunchError(f"the jobs have ended: {_last_words(farm)}", f"see {farm.folder}")
        stuck = next((task.stuck for task in tasks if task.stuck), "")
        if stuck:
            raise LaunchError(f"the batch system says {stuck}", "other options in the site's file")
        running = sum(task.running for task in tasks)
        words = f"{running} of {farm.servers} jobs run, {there} servers are ready"
        if words != said:
            say(words)
        said = words
        time.sleep(_LOOK_S)


def says(url: str, models: Sequence[str], *, timeout: float) -> str:
    """Return what a server says of these models: ``ready``, or why it is not."""
    endpoint = Endpoint.parse(url)
    try:
        with closing(TritonTransport(endpoint, timeout=timeout)) as transport:
            waiting = [model for model in models if not transport.model_ready(model)]
    except KitError as error:
        from deploy.client.diagnosis import why_unreachable  # takes long, and few need it

        return (why_unreachable(endpoint, timeout=timeout) or error).cause
    return f"not ready: {', '.join(waiting)}" if waiting else READY


def stop_farm(farm: Farm) -> None:
    """End all jobs of a farm, and remove its folder.

    Servers end by themselves when ``farm.json`` is gone; what does not is cancelled.

    Raises:
        KitError: Jobs do not end, or the batch system does not answer. The farm is still known.
    """
    # Or an up of the same name would start jobs meanwhile, and lose their folder.
    with DeploymentFolder(farm.name).taking_turns():
        if read_farm(farm.name) == farm:  # if not, another command has ended it
            _end_jobs(farm)


def _end_jobs(farm: Farm) -> None:
    begun = time.monotonic()
    keeper = farm.keeper()
    names = [farm.job] if keeper is None else [farm.job, keeper.name]
    with suppress(FileNotFoundError):  # the end before this one was broken off
        (farm.folder / _FILE).replace(farm.folder / _ENDING)
    while active := {name: tasks for name in names if (tasks := farm.system.active(name))}:
        waited = time.monotonic() - begun
        for name, tasks in active.items():
            if waited > _BY_THEMSELVES_S or not any(task.running for task in tasks.values()):
                farm.system.cancel(name)
        if waited > _ENDS_S:
            remedy = f"numlkit down --name {farm.name} again"
            raise LaunchError(f"jobs of {farm.name} do not end", remedy)
        time.sleep(_LOOK_S)
    shutil.rmtree(farm.folder, ignore_errors=True)


def _last_words(farm: Farm) -> str:
    logs = sorted(farm.folder.glob(f"{_JOBS}/*/*.log"), key=lambda path: path.stat().st_mtime)
    for log in reversed(logs):
        with suppress(OSError):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            marked = [line for line in lines if line.startswith("error: ")] or lines
            if marked:
                return f"{marked[-1].removeprefix('error: ')} ({log})"
    ended = [how for how in farm.system.ended(farm.job).values() if how]
    return ended[0] if ended else "no reason known"
