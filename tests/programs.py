"""Programs that are run, and those that stand for others."""

import multiprocessing
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_program(path: Path, script: str) -> Path:
    """Write a script that can be run, by the shell unless its first line says by what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run_program(
    words: Sequence[str | Path], *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its status and what it said."""
    return subprocess.run(words, capture_output=True, text=True, check=check, **more)


def in_child(action: Callable[[], object]) -> int | None:
    """Run ``action`` in a child of this process; return its status, negative for a signal."""
    child = multiprocessing.get_context("fork").Process(target=action)
    child.start()
    child.join()
    return child.exitcode


@contextmanager
def started(*words: str | int | Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends, when it is killed."""
    with subprocess.Popen([*map(str, words)], **more) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def running(*words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program that ends with its input: when the block ends, at the latest."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, **more) as process:
        yield process
