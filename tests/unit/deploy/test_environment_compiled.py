"""The compiled networks in the cache; the compiler itself is in the tests of numl_serving."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from deploy.environment.compiled import compiled_folder, ensure_compiled
from deploy.environment.install import Environment


def environment(folder: Path, answer: str) -> Environment:
    """Return an environment whose Python says what a compilation says."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(stat.S_IRWXU)
    return Environment(folder / "env", "digest", "3.11.7")


def test_what_a_killed_compilation_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/bin/sh")  # one that is there
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.json").write_text("{}")
    made = compiled_folder(tmp_path) / "made"
    left = compiled_folder(tmp_path) / ".compiling-abc"
    for folder in (made, left):
        folder.mkdir(parents=True)
        (folder / "iteration.so").write_bytes(b"x")
    given = environment(tmp_path, f'{{"compiled": "{made}"}}')
    assert ensure_compiled(given, [model], tmp_path, print).folders == (made,)
    assert not left.exists()
    assert made.exists()
