"""Networks compiled for GPUs, as far as that can be seen without one.

Made up is the GPU: a target with a compute capability that no GPU has, whose tensors lie in the
host's memory. So Inductor makes C++ of the arithmetic that it would make kernels of. And made up
is the toolkit, which nothing needs then. All else is as on a GPU: the settings, the arithmetic,
the facts, the way of a batch to the device and back, the check, the loader and what it refuses.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_files import model_directory
from networks_under_test import rewritten
from numl_serving import compile as compiling
from numl_serving import compiled, runtime
from numl_serving.block_ops import SHIMS
from numl_serving.compile import compile_model, main, settings
from numl_serving.compiled import CompiledError, CompiledNetwork, facts_of, folder_of
from numl_serving.golden import disagreements
from numl_serving.graph import build_graph
from numl_serving.runtime import Runtime
from numl_serving.target import Target, levels
from numl_serving.transfer import Transfer
from oracle import answer
from test_compiled import EVENTS, ROOT, model_of
from torch.utils import cpp_extension

CPU = torch.device("cpu")
GPU = Target(CPU, levels()[0], "sm_0", "13.0")
KINDS = ("24.7.1", "nugraph2")


def compile_for_gpu(monkeypatch: pytest.MonkeyPatch, directory: Path, root: Path = ROOT) -> Path:
    monkeypatch.setattr(compiling, "cuda_home", lambda folder: folder)
    monkeypatch.setattr(compiling, "transfer_to", Transfer)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)  # to be put back
    return compile_model(directory, root, GPU)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {kind: model_directory(kind, folder / kind) for kind in KINDS}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for directory in made.values():
            compile_for_gpu(monkeypatch, directory)
    return made


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be loaded as if the device were the GPU."""
    monkeypatch.setattr(compiled, "targets_of", lambda _device: (GPU,))
    monkeypatch.setattr(runtime, "transfer_to", Transfer)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_compiled_of_a_gpu_s_arithmetic_answers_as_nugraph_does(
    kind: str, directories: dict[str, Path]
) -> None:
    loaded = Runtime.load(directories[kind], compiled=ROOT)
    assert loaded.is_compiled
    for name, event in EVENTS.items():
        expected = answer(model_of(kind, 0), build_graph(event))
        assert disagreements(expected, loaded.infer(event)) == [], name


def test_the_facts_name_the_gpu_s_kind(directories: dict[str, Path]) -> None:
    network = rewritten(model_of("24.7.1", 0), "24.7.1")
    facts = facts_of(network, GPU)
    found = json.loads((folder_of(ROOT, facts) / "facts.json").read_text())
    assert {name: found[name] for name in ("processor", "gpu", "cuda")} == GPU.facts
    assert found == facts | {"sha256": found["sha256"]}


def test_what_was_compiled_for_a_gpu_is_not_looked_at_for_anything_else(
    directories: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = directories["24.7.1"]
    found = compile_for_gpu(monkeypatch, directory)
    (tmp_path / found.name).symlink_to(found)
    others = (
        Target(CPU, GPU.processor),
        Target(CPU, GPU.processor, "sm_1", GPU.cuda),
        Target(CPU, GPU.processor, GPU.gpu, "12.8"),
        Target(CPU, "another", GPU.gpu, GPU.cuda),
    )
    for target in (*others, GPU):
        caplog.clear()
        with monkeypatch.context() as here, caplog.at_level(logging.WARNING):
            here.setattr(compiled, "targets_of", lambda _device, target=target: (target,))
            loaded = Runtime.load(directory, compiled=tmp_path)
        assert loaded.is_compiled is (target == GPU)
        said = [record.getMessage() for record in caplog.records]
        assert [line.endswith("is missing") for line in said] == [True] * (target != GPU)


def test_a_wrong_answer_on_the_device_is_not_kept(
    directories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compile_for_gpu(monkeypatch, directories["nugraph2"])
    library = (found / "iteration.so").read_bytes()

    class Wrong(CompiledNetwork):
        def __call__(self, batch: Any) -> dict[str, torch.Tensor]:
            return {name: tensor + 1 for name, tensor in super().__call__(batch).items()}

    monkeypatch.setattr(compiling, "CompiledNetwork", Wrong)
    monkeypatch.setattr(compiling, "_build", lambda *given: given[3].write_bytes(library))
    with pytest.raises(CompiledError, match=r"^wrong answer to 0 hits: "):
        compile_for_gpu(monkeypatch, directories["nugraph2"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_cannot_be_loaded_is_told_in_one_line(
    directories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "run", lambda command: None)  # strip would refuse it
    monkeypatch.setattr(compiling, "_build", lambda *given: given[3].write_bytes(b"nonsense"))
    with pytest.raises(CompiledError, match=r"^what was compiled fails \(.*\)$"):
        compile_for_gpu(monkeypatch, directories["nugraph2"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_library_runs_on_the_gpu_that_triton_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []
    runners = SimpleNamespace(
        AOTIModelContainerRunnerCuda=lambda *arguments: given.append(arguments)
    )
    monkeypatch.setattr(torch._C, "_aoti", runners)
    network = rewritten(model_of("nugraph2", 0), "nugraph2")
    CompiledNetwork(network, tmp_path / "iteration.so", torch.device("cuda:1"))
    # One model in it, no folder of kernels beside it, and no other thread that runs it.
    assert given == [(str(tmp_path / "iteration.so"), 1, "cuda:1", "", True)]


@pytest.mark.parametrize(
    ("level", "march", "bits"),
    [
        ("x86-64-v4", "x86-64-v4", 512),
        ("x86-64-v3", "x86-64-v3", 256),
        ("5e1f0c0ffee", None, None),
    ],
)
def test_settings_say_what_is_compiled_for(level: str, march: str | None, bits: int | None) -> None:
    of_host = {
        "cpp.threads": 1,
        "cpp.cxx": ("g++",),
        "cpp.march": march,
        "cpp.simdlen": bits,
        "aot_inductor.precompile_headers": False,
    }
    assert settings(Target(CPU, level), "g++") == of_host | {
        "aot_inductor.custom_ops_to_c_shims": SHIMS,
        "aot_inductor.custom_op_libs": ["numl_blocks"],
    }
    gpu = Target(torch.device("cuda:1"), level, "sm_90", "13.0")
    assert settings(gpu, "g++") == of_host | {"aot_inductor.embed_kernel_binary": True}


def test_without_a_gpu_the_command_says_so(
    directories: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = [*map(str, directories.values()), "--out", str(tmp_path / "out"), "--gpu"]
    assert main(command) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"error": f"torch {torch.__version__} finds no GPU that it can use"}
    assert not (tmp_path / "out").exists()
