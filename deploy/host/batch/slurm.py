"""Slurm: a job is an array. Seen with Slurm 22.05."""

from __future__ import annotations

import math
import re

from deploy.host.batch.jobs import SCRIPT, BatchSystem, Job, Task, script_of
from deploy.host.errors import KitError

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
_RUNNING = ("RUNNING", "COMPLETING")
_STUCK = {
    *("BadConstraints", "DependencyNeverSatisfied", "PartitionTimeLimit", "JobHoldMaxRequeue"),
    "launch failed requeued held",
}


class Slurm(BatchSystem):
    """Slurm, by sbatch, squeue and scancel."""

    submit_command = ("sbatch", "--parsable", SCRIPT)
    # sbatch heeds them more than the script; squeue and scancel would leave jobs out.
    unheard = (
        *("SBATCH_JOB_NAME", "SBATCH_ARRAY_INX", "SBATCH_OUTPUT", "SBATCH_ERROR"),
        *("SBATCH_TIMELIMIT", "SBATCH_MEM_PER_", "SQUEUE_", "SCANCEL_"),
    )

    def render(self, job: Job) -> dict[str, str]:
        if re.search(r"%\w|\\", str(job.folder)):
            cause = f"{job.folder}: Slurm writes no logs there, as it changes % and \\ in a path"
            raise KitError(cause, "use a folder without them")
        needs = job.resources
        options = [
            f"--job-name={job.name}",
            f"--array=0-{job.tasks - 1}",
            "--output=%a.log",
            f"--cpus-per-task={needs.cpus}",
        ]
        if needs.memory_mib is not None:
            options.append(f"--mem={needs.memory_mib}M")
        if needs.hours is not None:
            options.append(f"--time={math.ceil(60 * needs.hours)}")
        # With its mark twice a line is a comment to sbatch, which ignores it.
        lines = (option.removeprefix("#SBATCH ") for option in (*options, *needs.options))
        header = [f"#SBATCH {line}" for line in lines]
        return {SCRIPT: script_of(job, header, "$SLURM_ARRAY_TASK_ID")}

    def listed(self, name: str) -> list[tuple[int, Task]]:
        return [
            (number, Task(state in _RUNNING, reason if reason in _STUCK else ""))
            for number, state, reason in self._tasks(name)
            if state not in _ENDED
        ]

    def ended(self, name: str) -> dict[int, str]:
        # Slurm remembers them for five minutes (MinJobAge) if it has no accounting.
        return {
            number: "" if state == "COMPLETED" else f"Slurm says {state}"
            for number, state, _ in self._tasks(name)
            if state in _ENDED
        }

    def cancel(self, name: str, task: int | None = None) -> None:
        said = self._ask(["squeue", "--noheader", f"--name={name}", "--format=%F"])
        for job_id in {line for line in said.split("\n") if line.isdecimal()}:
            # scancel cannot name a task of a job that it knows by name.
            self._ask(["scancel", job_id if task is None else f"{job_id}_{task}"])

    def _tasks(self, name: str) -> list[tuple[int, str, str]]:
        listed = ["--noheader", "--array", "--states=all", "--format=%K|%T|%r"]
        said = self._ask(["squeue", f"--name={name}", *listed])
        # No number has what is left of an array that was cancelled before it began.
        rows = re.findall(r"^(\d+)\|(\w+)\|(.*)$", said, re.MULTILINE)
        return [(int(number), state, reason) for number, state, reason in rows]
