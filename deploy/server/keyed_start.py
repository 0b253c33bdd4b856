"""Start a program with a key among its arguments that no list of processes shows.

    python keyed_start.py --key-file FILE -- PROGRAM ARGUMENT...
    python keyed_start.py --new-key-file FILE -- PROGRAM ARGUMENT...

The second form makes the key, in a file that nobody but its own user may read.

Triton takes the key to its admin endpoints only from its command line, and every user of a
host can read every process's command line, also that of a process in a container. So the
program is started with a placeholder where name and value of the key's header belong. Between
its start and its first instruction the table of pointers to its arguments, which lies on its
stack, is replaced by one that leads to arguments with the key. ``main`` is given these;
``/proc/PID/cmdline`` is the memory where the kernel has put the others, for as long as the
process lives. Nor is the key in ``/proc/PID/environ``, nor do the program's children get it.

The program takes this process's place and number. A helper that traces it (ptrace(2)) makes
the exchange and ends; if it cannot finish, it takes the program with it. Where tracing is not
permitted at all, or there is no key, the program gets the placeholder. With that the endpoints
are closed to everybody, and a line on standard error says so.

A single file for Python 3.8 or later, without any package: it also runs in containers, in
whatever Python is there.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

KEY_NAME = "numlkit-key"
# No client can send a header of this name, also none that reads it in the list of processes: HTTP
# ends a name at the colon, and gRPC takes no call with such a one. So it opens nothing.
PLACEHOLDER = "numlkit:key=PUT-IN-AT-START"
KEY_PATTERN = r"[0-9A-Za-z_-]{16,}"
KEY_BYTES = 32

# Where the stack pointer is among the general registers: struct user_regs_struct of x86_64,
# struct user_pt_regs of aarch64. In bytes.
_STACK_POINTER = {"x86_64": 19 * 8, "aarch64": 31 * 8}

# linux/ptrace.h, linux/elf.h, linux/prctl.h, linux/wait.h
_PTRACE_CONT = 7
_PTRACE_DETACH = 17
_PTRACE_GETREGSET = 0x4204
_PTRACE_SETREGSET = 0x4205
_PTRACE_SEIZE = 0x4206
_PTRACE_O_TRACEEXEC = 1 << 4
_PTRACE_O_EXITKILL = 1 << 20
_PTRACE_EVENT_EXEC = 4
_NT_PRSTATUS = 1
_PR_SET_PTRACER = 0x59616D61
_WALL = 0x40000000

_STACK_ALIGNMENT = 16  # bytes, of the stack pointer at a program's start
_YES = b"yes"


class ClosedError(Exception):
    """The program cannot be given the key here."""


def main(arguments: Sequence[str]) -> int:
    """Become the program; return an exit status if that cannot be done."""
    sources = {"--key-file": read_key, "--new-key-file": _make_key}
    if len(arguments) < 4 or arguments[0] not in sources or arguments[2] != "--":
        return _say("usage: keyed_start.py --key-file|--new-key-file FILE -- PROGRAM ARGUMENT...")
    obtain, key_file, command = sources[arguments[0]], arguments[1], [*arguments[3:]]
    if not any(PLACEHOLDER in argument for argument in command):
        return _say(f"no argument holds {PLACEHOLDER}")
    if os.getpid() == 1:
        _stay_as_init()
    try:
        opened = f"{KEY_NAME}={obtain(key_file)}"
        hidden = {
            os.fsencode(argument): os.fsencode(argument.replace(PLACEHOLDER, opened))
            for argument in command
            if PLACEHOLDER in argument
        }
        _have_exchanged(command[0], hidden)
    except (ClosedError, OSError) as error:
        _say(f"the admin endpoints are closed to everybody: {_words(error)}")
    # Python ignores these two, and what a process ignores the program it becomes ignores too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(command[0], command)
    except OSError as error:
        return _say(f"{command[0]}: {error.strerror}", status=127)


def read_key(path: str) -> str:
    """Return the key that a file holds.

    Raises:
        ClosedError: If it cannot be read, or holds something else.
    """
    try:
        with open(path, encoding="ascii") as stream:  # noqa: PTH123
            key = stream.read().strip()
    except OSError as error:
        raise ClosedError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        key = ""
    if not re.fullmatch(KEY_PATTERN, key):
        raise ClosedError(f"{path}: holds no key")
    return key


def _make_key(path: str) -> str:
    """Write a new key to a file that nobody else may read; return it.

    Raises:
        OSError: If it cannot be written.
    """
    key = os.urandom(KEY_BYTES).hex()
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    # Not one that somebody else has put there meanwhile.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, f"{key}\n".encode())
    finally:
        os.close(file)
    return key


def _say(text: str, status: int = 2) -> int:
    print(f"keyed_start: {text}", file=sys.stderr, flush=True)
    return status


def _words(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _stay_as_init() -> None:
    """Return in a child; this process passes signals on to it and ends with its status.

    A process whose parent has ended becomes the child of the first process of its container,
    and stays as a zombie if that one does not ask for its status. The helper is such a process,
    and the programs that this is made for do not ask.
    """
    everything = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    program = os.fork()
    if program == 0:
        # A terminal's signals go to a whole group; so they come once, by way of the parent.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(everything)
        if number != signal.SIGCHLD:
            os.kill(program, number)
            continue
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == program:
                killed = os.WIFSIGNALED(status)
                os._exit(128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status))
            if ended == 0:
                break


def _have_exchanged(program: str, hidden: Mapping[bytes, bytes]) -> None:
    """Have a helper exchange arguments of this process as soon as it becomes another program.

    Args:
        program: What it becomes.
        hidden: For each argument that the list of processes is to show, the program's own.

    Raises:
        ClosedError: If there is no helper that may trace this process and knows how.
    """
    if os.access(program, os.X_OK) and not os.access(program, os.R_OK):
        raise ClosedError(f"the key cannot be hidden: {program} may not be read")
    trace = _Trace(os.getpid())
    question, asked = os.pipe()
    answer, answered = os.pipe()
    child = os.fork()
    if child == 0:
        # Not a child of the program, which would have to ask for its status.
        if os.fork() == 0:
            os.close(asked)
            os.close(answer)
            _help(trace, hidden, question, answered)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(question)
    os.close(answered)
    try:
        trace.permit(int(os.read(answer, 100)))
        os.write(asked, _YES)
        reply = os.read(answer, 1000).decode()
    except (OSError, ValueError):
        reply = ""
    os.close(asked)
    os.close(answer)
    if reply != _YES.decode():
        raise ClosedError(f"the key cannot be hidden: {reply or 'the helper has ended'}")


def _help(trace: _Trace, hidden: Mapping[bytes, bytes], question: int, answered: int) -> NoReturn:
    """Be the helper."""
    try:
        os.write(answered, str(os.getpid()).encode())
        os.read(question, 1)
        try:
            trace.seize()
        except Exception as error:
            os.write(answered, _words(error).encode())
            os._exit(1)
        os.write(answered, _YES)
        if trace.reach_exec():
            trace.exchange(hidden)
            trace.release()
    except Exception as error:
        _say(f"the program is ended, the key cannot be hidden: {_words(error)}")
    finally:
        os._exit(0)


class _Trace:
    """A process as its tracer sees it, see ptrace(2).

    Args:
        pid: The process.

    Raises:
        ClosedError: If this machine or this Python does not offer what it takes.
    """

    def __init__(self, pid: int) -> None:
        if platform.machine() not in _STACK_POINTER:
            raise ClosedError(f"the key cannot be hidden on {platform.machine()}")
        try:
            import ctypes  # some Pythons are without
        except ImportError as error:
            raise ClosedError(f"the key cannot be hidden: {error}") from None
        self._pid = pid
        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._stack_pointer = _STACK_POINTER[platform.machine()]

    def permit(self, tracer: int) -> None:
        """Allow a process to trace this one, where by default only its parent may (Yama)."""
        word = self._ctypes.c_ulong
        self._libc.prctl(_PR_SET_PTRACER, word(tracer), word(0), word(0), word(0))

    def seize(self) -> None:
        """Begin to trace: the process stops as soon as it is another program.

        Until it is released, it does not survive the tracer.
        """
        with self._memory():
            self._ptrace(_PTRACE_SEIZE, 0, _PTRACE_O_TRACEEXEC | _PTRACE_O_EXITKILL)

    def release(self) -> None:
        """Let the process go."""
        self._ptrace(_PTRACE_DETACH, 0, 0)

    def reach_exec(self) -> bool:
        """Wait until the process has become another program; return False if it ends instead."""
        while True:
            _, status = os.waitpid(self._pid, _WALL)
            if not os.WIFSTOPPED(status):
                return False
            event = status >> 16
            if event == _PTRACE_EVENT_EXEC:
                return True
            self._ptrace(_PTRACE_CONT, 0, 0 if event else os.WSTOPSIG(status))

    def exchange(self, hidden: Mapping[bytes, bytes]) -> None:
        """Let the program find other arguments than those it was started with.

        A program finds on its stack: the number of its arguments, pointers to them, pointers to
        its variables, each list with a zero at the end, and the auxiliary vector (System V ABI,
        "Process Initialization"). A copy of that, with other pointers, is put below, and the
        stack pointer set to the copy.

        Raises:
            ClosedError: If the program has not got the arguments that are to be exchanged.
            OSError: If its memory or its registers may not be changed.
        """
        registers = self._ctypes.create_string_buffer(1024)
        size = self._registers(_PTRACE_GETREGSET, registers, len(registers))
        (top,) = struct.unpack_from("=Q", registers, self._stack_pointer)
        with self._memory() as memory:
            table = _table(memory, top)
            places = range(1, 1 + table[0])
            texts = b""
            base = top - sum(len(own) + 1 for own in hidden.values())
            for shown, own in hidden.items():
                text = shown + b"\0"
                found = [i for i in places if _read(memory, table[i], len(text)) == text]
                if not found:
                    raise ClosedError("the program has other arguments")
                for i in found:
                    table[i] = base + len(texts)
                texts += own + b"\0"
            start = (base - 8 * len(table)) // _STACK_ALIGNMENT * _STACK_ALIGNMENT
            _write(memory, base, texts)
            _write(memory, start, struct.pack(f"={len(table)}Q", *table))
        struct.pack_into("=Q", registers, self._stack_pointer, start)
        self._registers(_PTRACE_SETREGSET, registers, size)

    def _memory(self) -> BinaryIO:
        return open(f"/proc/{self._pid}/mem", "r+b", buffering=0)  # noqa: PTH123

    def _registers(self, request: int, buffer: Any, size: int) -> int:
        """Get or set the general registers; return their size in bytes."""
        ctypes = self._ctypes
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), size)  # struct iovec
        self._ptrace(request, _NT_PRSTATUS, ctypes.addressof(vector))
        return int(vector[1])

    def _ptrace(self, request: int, address: int, data: int) -> None:
        ctypes = self._ctypes
        word = ctypes.c_ulong
        if self._libc.ptrace(word(request), word(self._pid), word(address), word(data)) == -1:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")


def _table(memory: BinaryIO, top: int) -> list[int]:
    """Return the words at the start of a program's stack, the auxiliary vector's included."""
    words = [_word(memory, top)]
    # Two lists of pointers, then pairs of a type and a value.
    for step in (1, 1, 2):
        while True:
            entry = [_word(memory, top + 8 * (len(words) + i)) for i in range(step)]
            words += entry
            if entry[0] == 0:
                break
    return words


def _word(memory: BinaryIO, address: int) -> int:
    return int.from_bytes(_read(memory, address, 8), sys.byteorder)


def _read(memory: BinaryIO, address: int, size: int) -> bytes:
    memory.seek(address)
    return memory.read(size)


def _write(memory: BinaryIO, address: int, data: bytes) -> None:
    memory.seek(address)
    if memory.write(data) != len(data):
        raise ClosedError("the program's stack is too small")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
