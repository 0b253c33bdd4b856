"""The compiled networks in the cache; the compiler itself is in the tests of numl_serving.

GPUs are made up, and so is what compiles for them.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.environment.compiled import Compiled, compiled_folder, ensure_compiled
from deploy.environment.install import Environment
from deploy.hardware.gpu import Gpu


def environment(folder: Path, answer: str) -> Environment:
    """Return an environment whose Python says what a compilation says."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(stat.S_IRWXU)
    return Environment(folder / "env", "digest", "3.11.7")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CXX", "/bin/sh")  # one that is there
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    return folder


def test_what_a_killed_compilation_has_left_is_removed_by_the_next(
    tmp_path: Path, model: Path
) -> None:
    made = compiled_folder(tmp_path) / "made"
    left = compiled_folder(tmp_path) / ".compiling-abc"
    for folder in (made, left):
        folder.mkdir(parents=True)
        (folder / "iteration.so").write_bytes(b"x")
    given = environment(tmp_path, f'{{"compiled": "{made}"}}')
    assert ensure_compiled(given, [model], tmp_path, print).folders == (made,)
    assert not left.exists()
    assert made.exists()


H100 = Gpu(2, "GPU-2d5ba0d6", "NVIDIA H100", (9, 0), None)
A100 = Gpu(0, "GPU-0d5ba0d6", "NVIDIA A100", (8, 0), None)


def test_what_compiles_for_a_gpu_sees_that_one_alone(tmp_path: Path, model: Path) -> None:
    made = compiled_folder(tmp_path) / "made"
    made.mkdir(parents=True)
    given = environment(tmp_path, f'{{"compiled": "{made}"}}')
    asked = tmp_path / "asked"
    with given.python.open("a") as script:
        script.write(f'echo "$CUDA_VISIBLE_DEVICES" "$@" >>{asked}\n')
    said: list[str] = []
    for_gpu = ensure_compiled(given, [model], tmp_path, said.append, gpu=H100)
    assert for_gpu.folders == (made,)
    assert said == [
        "compiling the networks for GPU 2 (NVIDIA H100) (some minutes, unless done before)"
    ]
    assert asked.read_text() == (
        f"GPU-2d5ba0d6 -P -m numl_serving.compile {model} --gpu --out {compiled_folder(tmp_path)}\n"
    )

    alike = replace(H100, index=3, uuid="GPU-3d5ba0d6")
    assert ensure_compiled(given, [model], tmp_path, said.append, gpu=alike) == for_gpu
    assert len(said) == 1
    others = {
        ensure_compiled(given, [model], tmp_path, print, gpu=gpu).name for gpu in (A100, None)
    }
    assert len(others | {for_gpu.name}) == 3


def test_where_nothing_can_be_compiled_for_a_gpu_a_line_says_why(
    tmp_path: Path, model: Path
) -> None:
    given = environment(tmp_path, '{"error": "torch 2.13.0 finds no GPU that it can use"}')
    said: list[str] = []
    assert ensure_compiled(given, [model], tmp_path, said.append, gpu=H100) == Compiled()
    assert said[1:] == [
        "models run uncompiled on GPU 2 (NVIDIA H100), which is slower: "
        "torch 2.13.0 finds no GPU that it can use"
    ]
    said.clear()
    given.python.write_text("#!/bin/sh\necho first >&2; echo last >&2; exit 139\n")
    assert ensure_compiled(given, [model], tmp_path, said.append, gpu=H100) == Compiled()
    assert said[1:] == ["models run uncompiled on GPU 2 (NVIDIA H100), which is slower: last"]
