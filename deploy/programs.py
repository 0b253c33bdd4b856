"""Run the programs that a build is made with, and end them with us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.errors import BuildError, KitError

_PIPE = 1 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(r"(FATAL|ERROR|error|cannot|failed)\b")
_PREFIX = re.compile(r"^(FATAL ERROR|FATAL|ERROR)\s*:\s*|^While performing build:\s*")


def run(
    command: Sequence[str | Path],
    *,
    failed: str,
    remedy: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: Iterable[bytes | memoryview] = (),
    explain: Callable[[str], str] | None = None,
    line: Callable[[str], None] | None = None,
    error: type[KitError] = BuildError,
) -> str:
    """Run ``command`` to its end and return what it wrote to standard output.

    It gets a process group of its own, which is ended when this process is interrupted.

    Args:
        command: Program and arguments.
        failed: What it means if it fails, as in ``cannot write the file system``.
        remedy: What to do then.
        cwd: The folder to run it in.
        environment: Its environment; None: this process's.
        stdin: What it reads from standard input.
        explain: Returns the reason, given all it has written; None: :func:`complaint` of
            what it wrote to standard error.
        line: Is told each line of standard output as it comes; then nothing is returned.
        error: What is raised.

    Raises:
        KitError: ``error``, with the program's own reason, in one line.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            pipesize=_PIPE,
            stdout=output if line is None else subprocess.PIPE,
            stderr=errors,
            process_group=0,
        )
        assert process.stdin is not None
        try:
            try:
                with process.stdin as pipe:
                    for chunk in stdin:
                        pipe.write(chunk)
            except BrokenPipeError:
                pass  # it has ended, and says why
            if line is not None and process.stdout is not None:
                with process.stdout as lines:
                    for text in lines:
                        line(text.decode(errors="replace"))
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        output.seek(0)
        errors.seek(0)
        written = output.read().decode(errors="replace")
        complaints = errors.read().decode(errors="replace")
    if status != 0:
        why = complaint(complaints) if explain is None else explain(written + complaints)
        raise error(f"{failed}: {why or f'exit status {status}'}", remedy)
    return written


def complaint(said: str) -> str:
    """Return the line of a program's messages that says why it failed; empty if none does."""
    lines = [_COLOURS.sub("", line).strip() for line in said.splitlines()]
    lines = [line for line in lines if line]
    if any("No space left on device" in line for line in lines):
        return "no space left on device"
    chosen = next((line for line in reversed(lines) if _COMPLAINT.search(line)), "")
    chosen = chosen or (lines[-1] if lines else "")
    while (shorter := _PREFIX.sub("", chosen)) != chosen:
        chosen = shorter
    return chosen[:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    # Its children may take no notice, or have lost their parent.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
