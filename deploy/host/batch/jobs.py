"""A batch job as frozen data, and what every batch system can do with it."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from deploy.host.errors import KitError
from deploy.host.programs import run

SCRIPT = "job.sh"
_MIB = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
# A restarted controller of a large site takes minutes to answer again.
_SILENCE_S = 600.0
# Around the lines of setup. Not after each one: a line may be the first of several of an if.
_GUARD = ("trap 'echo \"a line of setup ended this job: exit status $?\" >&2' EXIT", "set -e")
_UNGUARD = ("set +e", "trap - EXIT")


class Resources(BaseModel, frozen=True, extra="forbid"):
    """What one task of a job is given.

    Attributes:
        memory: None: the batch system's own default, as for ``hours``.
        options: Lines of the batch system's own, without ``#SBATCH``.
        setup: Lines of shell before the task's own; if one fails, the task ends.
    """

    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    memory: Annotated[ByteSize, Field(ge=10**6)] | None = None
    hours: Annotated[float, Field(gt=0, le=10_000)] | None = None
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    @property
    def memory_mib(self) -> int | None:
        return None if self.memory is None else -(-int(self.memory) // _MIB)


@dataclass(frozen=True, slots=True)
class Job:
    """Tasks that run one script.

    Attributes:
        name: No other job has it: the batch system is asked for it.
        tasks: How many; they are numbered from 0.
        script: Lines of shell; ``$TASK`` is the task's number.
        folder: A folder that all nodes see, for the rendered files and each task's output.
    """

    name: str
    tasks: int
    script: tuple[str, ...]
    folder: Path
    resources: Resources

    def log(self, task: int) -> Path:
        return self.folder / f"{task}.log"


@dataclass(frozen=True, slots=True)
class Task:
    """A task that waits or runs; ``stuck`` says why it will never run, if the system says so."""

    running: bool
    stuck: str = ""


class BatchSystem(ABC):
    """A batch system, asked by its own commands on this host."""

    submit_command: tuple[str, ...]
    """Its last word is the file to submit."""
    beside: tuple[str, ...] = ()
    """Options that run a job on the submitting host, as nodes cannot submit; none: they can."""
    unheard: tuple[str, ...] = ()
    """Beginnings of a user's variables that would win over what is asked here."""

    @abstractmethod
    def render(self, job: Job) -> dict[str, str]:
        """Return the files of a job by name; :data:`SCRIPT` is what a task runs."""

    @abstractmethod
    def listed(self, name: str) -> list[tuple[int, Task]]:
        """Return number and state of each task that has not ended, of all jobs of that name."""

    def active(self, name: str) -> dict[int, Task]:
        """Return the tasks of a job that have not ended; none if there is no such job."""
        return dict(self.listed(name))

    @abstractmethod
    def ended(self, name: str) -> dict[int, str]:
        """Return how tasks ended, as far as the system remembers; empty words for success."""

    @abstractmethod
    def cancel(self, name: str, task: int | None = None) -> None:
        """Cancel a task, or the whole job; what has ended already is no error."""

    def submit(self, job: Job) -> None:
        """Write a job's files to its folder, and submit it.

        Raises:
            KitError: The batch system refuses it, or is not there.
        """
        job.folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.render(job).items():
            # A path's bytes need not be UTF-8.
            (job.folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        (job.folder / SCRIPT).chmod(0o755)
        self._ask(self.submit_command, cwd=job.folder)

    def _ask(self, words: Sequence[str], cwd: Path | None = None) -> str:
        if shutil.which(words[0]) is None:
            cause = f"there is no {words[0]} on this host"
            raise KitError(cause, "run this where the batch system's commands are")
        variables = {k: v for k, v in os.environ.items() if not k.startswith(self.unheard)}
        # In UTC and English, whatever the user has: the output is read.
        variables["LC_ALL"] = "C"
        failed = f"{words[0]} failed"
        return run(words, failed=failed, cwd=cwd, environment=variables, error=KitError)


def script_of(job: Job, header: Sequence[str], number: str) -> str:
    """Return the script of a task, given the shell's words for its number."""
    setup = (*_GUARD, *job.resources.setup, *_UNGUARD) if job.resources.setup else ()
    lines = ("#!/bin/sh", *header, f"TASK={number}", *setup, *job.script)
    return "\n".join(lines) + "\n"


def watch(
    system: BatchSystem, name: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Mapping[int, Task]]:
    """Yield a job's active tasks, more and more rarely, until there are none.

    Tasks that are stuck are cancelled. A batch system may be silent for ten minutes.
    """
    pause, silent = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            tasks = system.active(name)
            for number in (number for number, task in tasks.items() if task.stuck):
                system.cancel(name, number)
        except KitError:
            silent += pause
            if silent > _SILENCE_S:
                raise
        else:
            silent = 0.0
            yield tasks
            if not tasks:
                return
        sleep(pause)
        pause = min(1.2 * pause, _LONGEST_PAUSE_S)
