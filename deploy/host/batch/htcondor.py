"""HTCondor: a job is a cluster. Seen with HTCondor 23.9."""

from __future__ import annotations

import math

from deploy.host.batch.jobs import SCRIPT, BatchSystem, Job, Task, script_of
from deploy.host.errors import KitError

DESCRIPTION = "job.sub"
# https://htcondor.readthedocs.io/en/latest/classad-attributes/job-classad-attributes.html
_RUNNING, _REMOVED, _COMPLETED, _HELD = 2, 3, 4, 5
_HELD_BY_USER = 1


class HTCondor(BatchSystem):
    """HTCondor, by condor_submit, condor_q, condor_history and condor_rm."""

    submit_command = ("condor_submit", "-terse", DESCRIPTION)
    # As DAGMan runs; a job that is killed, or fails, is started again.
    beside = ("universe = scheduler", "on_exit_remove = ExitCode =?= 0")

    def render(self, job: Job) -> dict[str, str]:
        needs = job.resources
        lines = [
            f"executable = {SCRIPT}",
            "arguments = $(Process)",
            f"batch_name = {job.name}",
            "output = $(Process).log",
            "error = $(Process).log",
            "log = job.events",
            "should_transfer_files = NO",
            "getenv = HOME, PATH, XDG_*",
            f"request_cpus = {needs.cpus}",
        ]
        if needs.memory_mib is not None:
            lines.append(f"request_memory = {needs.memory_mib}")
        if needs.hours is not None:
            lines.append(f"allowed_job_duration = {math.ceil(3600 * needs.hours)}")
        lines += [*needs.options, f"queue {job.tasks}"]
        return {SCRIPT: script_of(job, (), "$1"), DESCRIPTION: "\n".join(lines) + "\n"}

    def listed(self, name: str) -> list[tuple[int, Task]]:
        found = []
        for row in self._rows("condor_q", name, "JobStatus", "HoldReasonCode", "HoldReason"):
            number, status, code, reason = row.split(None, 3)
            if int(status) in (_REMOVED, _COMPLETED):
                continue
            stuck = int(status) == _HELD and code != str(_HELD_BY_USER)
            found.append((int(number), Task(int(status) == _RUNNING, reason if stuck else "")))
        return found

    def ended(self, name: str) -> dict[int, str]:
        found = {}
        for row in self._rows("condor_history", name, "ExitCode", "ExitSignal", "RemoveReason"):
            number, code, signal, removed = row.split(None, 3)
            how = f"HTCondor removed it: {removed}"
            if code.isdecimal():
                how = "" if code == "0" else f"exit status {code}"
            elif signal.isdecimal():
                how = f"killed by signal {signal}"
            found[int(number)] = how
        return found

    def cancel(self, name: str, task: int | None = None) -> None:
        which = _constraint(name) + ("" if task is None else f" && ProcId == {task}")
        try:
            self._ask(["condor_rm", "-constraint", which])
        except KitError:
            if self.active(name):  # else there is nothing to remove, which it calls an error
                raise

    def _rows(self, command: str, name: str, *attributes: str) -> list[str]:
        words = [command, "-constraint", _constraint(name), "-af", "ProcId", *attributes]
        return [line for line in self._ask(words).split("\n") if line]


def _constraint(name: str) -> str:
    return f'JobBatchName == "{name}"'
