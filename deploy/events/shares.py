"""Many files as batch jobs: each labels a share of them, and what it leaves is submitted again.

What is done is seen in the folder of results alone, as bulk.py has it. ``FOLDER/batch`` holds the
shares, the rendered files and the logs until every file is done. The same command finds jobs that
an earlier one left, by their name in ``run.json``.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deploy.events.bulk import (
    Progress,
    Record,
    check_names,
    is_done,
    read_record,
    record_name,
    remove_abandoned,
)
from deploy.events.inference import Failure
from deploy.host.batch.jobs import BatchSystem, Job, watch
from deploy.host.batch.settings import SYSTEMS, BatchSettings
from deploy.host.console import Say, counted
from deploy.host.errors import ClientError, Ended, KitError
from deploy.host.files import naming, nobody_at_work, remove_folder, write_atomically

_RUN, _LOCK = "run.json", ".lock"
_ERROR = "error: "
_TAIL = 1 << 16  # bytes of a log


@dataclass(frozen=True, slots=True)
class Campaign:
    """Files to label by batch jobs.

    Attributes:
        command: The words that label files and write to ``folder``, but for the files' names.
        model: The name of what labels them.
        weights: The digest of its weights; None: jobs have servers of their own, and find it out.
    """

    files: tuple[Path, ...]
    folder: Path
    command: tuple[str, ...]
    settings: BatchSettings
    model: str
    weights: str | None = None

    @property
    def batch(self) -> Path:
        return self.folder / "batch"

    def not_done(self) -> list[Path]:
        wanted = self.folder, self.model, self.weights
        return [path for path in self.files if not is_done(path, *wanted)]


def job_of(campaign: Campaign, files: Sequence[Path]) -> tuple[Job, list[list[Path]]]:
    """Return a new job for these files, and the share of each of its tasks."""
    for path in files:
        if not {"\n", "\r"}.isdisjoint(str(path.absolute())):
            cause = f"{str(path)!r}: jobs take one path on each line, and this one has a line break"
            raise ClientError(cause, "rename it")
    name, number = f"numl-{secrets.token_hex(4)}", min(campaign.settings.jobs, len(files))
    folder = campaign.batch.absolute() / name
    command = " ".join(map(shlex.quote, campaign.command))
    line = f'exec {command} @{shlex.quote(str(folder))}/"$TASK".txt'
    shares = [list(files[first::number]) for first in range(number)]
    return Job(name, number, (line,), folder, campaign.settings), shares


def preview(campaign: Campaign) -> dict[str, str]:
    """Return the files of the job that a run would submit first; nothing is written."""
    check_names(campaign.files, campaign.folder)
    if not (todo := campaign.not_done()):
        return {}
    return SYSTEMS[campaign.settings.engine]().render(job_of(campaign, todo)[0])


def run_campaign(
    campaign: Campaign,
    *,
    say: Say = lambda _: None,
    progress: Callable[[Progress, str], None] = lambda *_: None,
) -> Progress:
    """Have batch jobs label the files that are not done yet; return how far they came.

    Raises:
        ClientError: As :func:`deploy.events.bulk.label_files`; or another command does this.
        KitError: The batch system refuses the job, or does not answer.
        KeyboardInterrupt: Its jobs are cancelled.
    """
    check_names(campaign.files, campaign.folder)
    with naming(campaign.folder), nobody_at_work([campaign.batch / _LOCK]):
        before = set(campaign.files).difference(campaign.not_done())
        state = Progress(len(campaign.files), done=len(before), skipped=len(before))
        run = _Run(campaign, state, say, progress)
        run.rejoin()
        for attempt in range(campaign.settings.retries + 1):
            if not (todo := campaign.not_done()):
                break
            # Backwards the second time: those after a file that kills its job have their turn, too.
            run.submit(todo[::-1] if attempt % 2 else todo, again=attempt > 0)
        left = campaign.not_done()
        _count(campaign, state, before, left)
        state.left = [Failure(None, str(path), run.reasons.get(path, "not done")) for path in left]
        remove_abandoned(campaign.folder)
        if not state.left:
            remove_folder(campaign.batch)
    return state


@dataclass(slots=True)
class _Run:
    """A campaign's jobs, one after the other; ``reasons`` says why they left files."""

    campaign: Campaign
    state: Progress
    say: Say
    progress: Callable[[Progress, str], None]
    reasons: dict[Path, str] = field(default_factory=dict)
    _stuck: dict[int, str] = field(default_factory=dict)

    def rejoin(self) -> None:
        """Wait for the job that a command which was killed has left, if there is one."""
        try:
            noted = json.loads((self.campaign.batch / _RUN).read_text(encoding="utf-8"))
            system, name = SYSTEMS[noted["engine"]](), str(noted["name"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if system.active(name):
            self.say(f"going on with job {name}")
            self._wait(system, name)

    def submit(self, files: Sequence[Path], *, again: bool) -> None:
        """Submit a job for these files, wait for it, and keep why it left any."""
        settings = self.campaign.settings
        system = SYSTEMS[settings.engine]()
        job, shares = job_of(self.campaign, files)
        job.folder.mkdir(parents=True)
        # Of a file that is done, each task sees whether its server's weights are the same.
        waiting = set(files)
        done = [path for path in self.campaign.files if path not in waiting]
        sentinel = done[:1] if self.campaign.weights is None else []
        for number, share in enumerate(shares):
            listed = "".join(f"{path.absolute()}\n" for path in [*sentinel, *share])
            written = job.folder / f"{number}.txt"
            written.write_text(listed, encoding="utf-8", errors="surrogateescape")
        # Before it is submitted: a command killed right after that must find it by its name.
        noted = {"engine": settings.engine, "name": job.name}
        write_atomically(self.campaign.batch / _RUN, json.dumps(noted) + "\n")
        what = f"{counted(len(files), 'file')} in {counted(job.tasks, 'task')}"
        self.say(f"{'again: ' if again else ''}{what}, job {job.name}")
        self._wait(system, job.name, lambda: system.submit(job))
        self._explain(system, job, shares)

    def _wait(
        self, system: BatchSystem, name: str, begin: Callable[[], None] = lambda: None
    ) -> None:
        self._stuck = {}
        try:
            begin()
            for tasks in watch(system, name):
                self._stuck |= {n: task.stuck for n, task in tasks.items() if task.stuck}
                there = {entry.name for entry in os.scandir(self.campaign.folder)}
                self.state.done = sum(record_name(path) in there for path in self.campaign.files)
                running = sum(task.running for task in tasks.values())
                words = f"{counted(running, 'task')} running, {len(tasks) - running} waiting"
                self.progress(self.state, words)
        except Ended:  # whoever logs out finds them again
            raise
        except KeyboardInterrupt:
            self.say(f"cancelling job {name}")  # another Ctrl-C may leave it
            system.cancel(name)
            self.say(f"job {name} is cancelled")
            raise

    def _explain(self, system: BatchSystem, job: Job, shares: Sequence[Sequence[Path]]) -> None:
        left = {path: number for number, share in enumerate(shares) for path in share}
        left = {path: left[path] for path in self.campaign.not_done() if path in left}
        if not left:
            return
        ended: dict[int, str] = {}
        with suppress(KitError):
            ended = system.ended(job.name)
        ended |= self._stuck
        for number in sorted(set(left.values())):
            said = _last_words(job.log(number))
            share = [path for path, task in left.items() if task == number]
            named = {path: reason for path in share for reason in _reason_for(path, said)}
            marked = [line.removeprefix(_ERROR) for line in said if line.startswith(_ERROR)]
            words = marked[-1:]
            if not words or words == ["interrupted"]:  # by whom, the batch system knows
                words = [ended.get(number, ""), *(words or said[-1:])]
            why = f"{': '.join(filter(None, words)) or 'no reason known'} ({job.log(number)})"
            for path in share:
                self.reasons[path] = named.get(path, why)
            if not named:
                self.say(f"task {number} of {job.name}: {why}")


def _count(campaign: Campaign, state: Progress, before: set[Path], left: Sequence[Path]) -> None:
    """Count what is done, and what of it is new; ClientError if it is not of one model."""
    records: dict[Path, Record] = {}
    for path in set(campaign.files).difference(left):
        record = read_record(campaign.folder / record_name(path))
        assert record is not None
        records[path] = record
    if len({(record.model, record.weights) for record in records.values()}) > 1:
        cause = f"{campaign.folder} has results of several models or weights"
        raise ClientError(cause, "write to another folder")
    new = [record for path, record in records.items() if path not in before]
    state.done = len(records)
    state.events = sum(record.events for record in new)
    state.failed = sum(record.failed for record in new)


def _last_words(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _reason_for(path: Path, said: Sequence[str]) -> list[str]:
    mark = f"left: {path.absolute()}: "
    return [line.removeprefix(mark) for line in said if line.startswith(mark)][:1]
