"""Programs that stand for others."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_program(path: Path, script: str) -> Path:
    """Write a script of the shell that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@contextmanager
def running(*words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program that ends with its input: when the block ends, at the latest."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, **more) as process:
        yield process
