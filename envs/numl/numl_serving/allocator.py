"""Keep the memory of large tensors instead of returning it to the kernel after each use.

Events differ in size, so that with time free memory lies in pieces between what is in use, and
the next large tensor needs new memory. Now and then all that is free is returned after all.
"""

from __future__ import annotations

import ctypes

BATCHES_BETWEEN_RETURNS = 256
"""To get memory again costs a fourth of an event's time: this seldom, a thousandth of all."""

# glibc's malloc.h. It takes no larger threshold for mmap than this on 64-bit machines.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 << 20
_TRIM_THRESHOLD_BYTES = 256 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB of freed memory.

    By default glibc returns tensors of megabytes to the kernel whenever they are freed. A network
    makes the same ones again and again, and the page faults took a third of its time for an
    event of 1,300 hits. Does nothing where the C library has no ``mallopt``.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def return_freed_memory() -> None:
    """Return all free memory of this process to the kernel, if the C library knows how."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))
