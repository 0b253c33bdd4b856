"""A job's command and what runs beside it: signals are passed on, nothing outlives this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

FAILED = 125
"""The exit status where the command was not run; else it is the command's own."""
_PASSED_ON = {
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
}
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_WATCH_S = 0.5
_GRACE_S = 15
# Its input ends with the process that writes it; the last line of a kind counts. A server that is
# asked to end removes what it has in /dev/shm. Some batch systems signal all of a job's processes.
_REMOVE = """trap '' HUP INT QUIT TERM USR1 USR2
command= server=
while read -r kind group; do
  case $kind in command) command=$group ;; server) server=$group ;; esac
done
tell() { kill -s "$1" -- "-$2" 2>/dev/null; }
if [ -n "$command" ]; then tell KILL "$command"; fi
if [ -n "$server" ] && tell TERM "$server"; then
  left=$(($2 * 10))
  while [ "$left" -gt 0 ] && tell 0 "$server"; do sleep 0.1; left=$((left - 1)); done
  tell KILL "$server"
fi
rm -rf "$1"
"""


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
    """Holds signals back, to be waited for; a context manager.

    Once a command has run, those that nobody has waited for are dropped at the end: the exit status
    is the command's.
    """

    def __enter__(self) -> Signals:
        # Where a parent has it ignored, the system keeps no exit status, and each would be 0.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # One that is ignored, as under nohup, would come all the same if it were waited for.
        heard = {each for each in _PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN}
        self._waited_for = {*heard, signal.SIGCHLD, signal.SIGALRM}
        self._has_run = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._waited_for)
        return self

    def __exit__(self, *_: object) -> None:
        dropped = self._waited_for if self._has_run else {signal.SIGALRM}
        while signal.sigtimedwait(dropped, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, seconds: float) -> Signal | None:
        """Return the next signal; None if a child has ended, or after so many seconds."""
        # By a timer: of a wait that was stopped, and let go on after its time, sigtimedwait returns
        # a signal that never came, whatever its stack held.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        info = signal.sigwaitinfo(self._waited_for)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if info.si_signo in (signal.SIGCHLD, signal.SIGALRM):
            return None
        return Signal(info.si_signo, info.si_code > 0)

    def child(
        self,
        words: Sequence[str],
        *,
        at_end: int = signal.SIGKILL,
        leads: Callable[[int], None] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a process that is sent ``at_end`` when this one ends, however it does.

        With ``leads``, a method of :class:`Remains`, it leads a process group, which is ended then,
        too: the system forgets ``at_end`` if it runs a setuid program, as Apptainer may be.
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

        ``watch`` is called before, and then every half a second. OSError if it cannot be started.
        """
        # At a terminal only the foreground's group may read, and Ctrl-C reaches that one alone.
        own_group = not os.isatty(0)
        leads = remains.add_command if own_group else None
        watch()
        process = self.child(words, env=variables, leads=leads)
        self._has_run = True
        while process.poll() is None:
            came = self.wait(_WATCH_S)
            if came is not None and not came.typed:
                process.send_signal(came.number)
            elif came is not None and own_group:
                os.killpg(process.pid, came.number)  # as the terminal does
            watch()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _prepare(at_end: int, parent: int, mask: set[Any], leads: Callable[[int], None] | None) -> None:
    if leads is not None:
        if os.getpgrp() != os.getpid():  # the leader of a session leads its group already
            os.setpgid(0, 0)
        # Before it does anything: its parent may be killed at any moment.
        leads(os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_with_parent(at_end, parent)


def refused(words: Sequence[str], error: OSError) -> tuple[int, str]:
    """Return exit status and words for a command that cannot be started, as shells have them."""
    return 127 if isinstance(error, FileNotFoundError) else 126, f"{words[0]}: {error.strerror}"


class Remains:
    """What is removed at the end, also if this process is killed; a context manager.

    It raises OSError where there is no usable temporary folder, or no further process.

    Attributes:
        folder: A new folder.
    """

    def __enter__(self) -> Remains:
        self.folder = Path(tempfile.mkdtemp(prefix="numl-job-"))
        words = ["/bin/sh", "-c", _REMOVE, "sh", str(self.folder), str(_GRACE_S)]
        reading, self._writing = os.pipe()  # only this process has the writing end
        try:
            self._remover = subprocess.Popen(words, stdin=reading, start_new_session=True)
        except OSError as error:
            self.folder.rmdir()
            error.filename = words[0]
            raise
        finally:
            os.close(reading)
        return self

    def add_command(self, leader: int) -> None:
        """Have a process group killed, instead of the one before."""
        self._note(f"command {leader}")

    def command_ended(self) -> None:
        """Have none killed: its number is free, and may become another's."""
        self._note("command")

    def add_server(self, leader: int) -> None:
        """Have a process group asked to end and then killed, instead of the one before."""
        self._note(f"server {leader}")

    def server_ended(self) -> None:
        """Have none asked: its number is free, or a zombie's that nobody waits for."""
        self._note("server")

    def __exit__(self, *_: object) -> None:
        os.close(self._writing)
        self._remover.wait()

    def _note(self, line: str) -> None:
        with suppress(BrokenPipeError):  # somebody has killed it, which is no fault of the command
            os.write(self._writing, f"{line}\n".encode("ascii"))
