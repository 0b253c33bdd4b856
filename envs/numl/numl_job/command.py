"""A job's command and what runs beside it: signals are passed on, nothing outlives this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

FAILED = 125
"""The exit status where the command was not run; else it is the command's own."""
_PASSED_ON = {
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
}
_WAITED_FOR = {*_PASSED_ON, signal.SIGCHLD}
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_WATCH_S = 0.5
_REMOVE = 'read -r group && read -r _; kill -s KILL -- "-$group" 2>/dev/null; rm -rf "$1"'


class Signal(NamedTuple):
    """A signal that came; one typed at the terminal has reached all of the foreground's group."""

    number: int
    typed: bool


def end_with_parent(number: int, parent: int) -> None:
    """Have the system send this process a signal when its parent's ends, if it has not already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


class Signals:
    """Holds signals back, to be waited for; a context manager."""

    def __enter__(self) -> Signals:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, seconds: float) -> Signal | None:
        """Return the next signal; None if a child has ended, or after so many seconds."""
        info = signal.sigtimedwait(_WAITED_FOR, seconds)
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        return Signal(info.si_signo, info.si_code > 0)

    def child(
        self,
        words: Sequence[str],
        *,
        at_end: int = signal.SIGKILL,
        leads: Remains | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a process that is sent ``at_end`` when this one ends, however it does.

        With ``leads`` it leads a process group, which is killed then, too.
        """
        prepare = partial(_prepare, at_end, os.getpid(), self._mask, leads)
        return subprocess.Popen(words, preexec_fn=prepare, text=True, **options)

    def run(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        remains: Remains,
        watch: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a command and pass signals on to it; return its exit status, as shells give it.

        ``watch`` is called every half a second. OSError if it cannot be started.
        """
        # At a terminal only the foreground's group may read, and Ctrl-C reaches that one alone.
        own_group = not os.isatty(0)
        process = self.child(words, env=variables, leads=remains if own_group else None)
        while process.poll() is None:
            came = self.wait(_WATCH_S)
            if came is not None and not came.typed:
                process.send_signal(came.number)
            elif came is not None and own_group:
                os.killpg(process.pid, came.number)  # as the terminal does
            watch()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _prepare(at_end: int, parent: int, mask: set[Any], leads: Remains | None) -> None:
    if leads is not None:
        os.setpgid(0, 0)
        # Before it does anything: its parent may be killed at any moment.
        leads.add_group(os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_with_parent(at_end, parent)


def refused(words: Sequence[str], error: OSError) -> tuple[int, str]:
    """Return exit status and words for a command that cannot be started, as shells have them."""
    return 127 if isinstance(error, FileNotFoundError) else 126, f"{words[0]}: {error.strerror}"


class Remains:
    """What is removed at the end, also if this process is killed; a context manager.

    Attributes:
        folder: A new folder.
    """

    def __enter__(self) -> Remains:
        reading, self._writing = os.pipe()  # only this process has the writing end
        self.folder = Path(tempfile.mkdtemp(prefix="numl-job-"))
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, "sh", self.folder], stdin=reading, start_new_session=True
        )
        os.close(reading)
        return self

    def add_group(self, leader: int) -> None:
        """Have a process group killed, too."""
        os.write(self._writing, b"%d\n" % leader)

    def __exit__(self, *_: object) -> None:
        os.close(self._writing)
        self._remover.wait()
