"""What a test does to have the kernel refuse tracing."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct


def refuse_tracing() -> None:
    """Have ptrace(2) refused to this process, and all it starts, from now on: see seccomp(2)."""
    number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
    load_number, equal, answer = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (load_number, 0, 0, 0),
            (equal, 0, 1, number),
            (answer, 0, 0, 0x00050000 | errno.EPERM),
            (answer, 0, 0, 0x7FFF0000),
        )
    )
    steps = ctypes.create_string_buffer(program)
    pointer = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(steps))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.c_char_p(pointer)) == 0  # PR_SET_SECCOMP
