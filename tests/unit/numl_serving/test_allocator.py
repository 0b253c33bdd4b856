"""What a process does with memory that it has freed; each looked at in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_files import model_directory
from numl_serving import runtime as runtime_module
from numl_serving.runtime import Runtime
from oracle import random_event

# Frees 128 MB in pieces, with something that stays behind each of them; tells what it holds of it.
PROGRAM = """
import os
from pathlib import Path
from numl_serving.allocator import keep_freed_memory, return_freed_memory

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_freed_memory()
before = held()
pieces = [(bytearray(b"x" * 2**20), bytearray(b"x" * 2**12)) for _ in range(128)]
stays = [small for _, small in pieces]
del pieces
kept = held() - before
return_freed_memory()
print(kept >> 20, held() - before >> 20)
"""


def test_freed_memory_is_kept_until_it_is_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    kept, left = map(int, done.stdout.split())
    assert kept > 100
    assert left < 10


def test_a_model_returns_freed_memory_once_in_so_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "BATCHES_BETWEEN_RETURNS", 3)
    runtime = Runtime.load(model_directory("nugraph2", tmp_path / "model"))
    event = random_event(np.random.default_rng(1), 40)
    answered: list[object] = []
    returned: list[int] = []
    monkeypatch.setattr(
        runtime_module, "return_freed_memory", lambda: returned.append(len(answered))
    )
    for _ in range(7):
        answered.append(runtime.infer(event))
    assert returned == [2, 5]
