"""Compiled networks give the answers of nugraph, and are used only where they fit."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_files import model_directory
from networks_under_test import rewritten, run
from numl_serving import check, compiled
from numl_serving.compile import choose_target, compile_model, compile_network
from numl_serving.compiled import CompiledError, facts_of, folder_of
from numl_serving.event import Event, HitTable
from numl_serving.golden import disagreements
from numl_serving.graph import build_graph
from numl_serving.runtime import Outputs, Runtime
from numl_serving.target import Target
from numpy.typing import NDArray
from oracle import KINDS, NORMALISATION, answer, random_event, reference

# Where the kit keeps them: one that is there for this code need not be compiled again.
ROOT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "numlkit" / "compiled"

model_of = cache(reference)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {kind: model_directory(kind, folder / kind) for kind in KINDS}
    for directory in made.values():
        compile_model(directory, ROOT)
    return made


@pytest.fixture(scope="module")
def runtimes(directories: dict[str, Path]) -> dict[str, Runtime]:
    loaded = {kind: Runtime.load(path, compiled=ROOT) for kind, path in directories.items()}
    assert all(runtime.is_compiled for runtime in loaded.values())
    return loaded


def without_spacepoints(event: Event) -> Event:
    return Event.from_tensors(
        {n: a[:0] if n.startswith("spacepoint") else a for n, a in event.tensors().items()}
    )


def with_column(event: Event, name: str, value: float, every: int) -> Event:
    columns = {each: getattr(event.hits, each) for each in HitTable.__slots__}
    some = np.arange(len(event.hits)) % every == 0
    columns[name] = np.where(some, value, columns[name]).astype(np.float32)
    return Event(HitTable(**columns), event.spacepoints)


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


EVENTS = {
    **{f"{hits} hits": random_event(rng(), hits) for hits in (0, 1, 2, 3, 7, 60, 189, 1300, 5000)},
    "one plane": random_event(rng(), 90, planes=(1,)),
    "no hits in v": random_event(rng(), 90, planes=(0, 2)),
    "no spacepoints": without_spacepoints(random_event(rng(), 90)),
    "one hit, no spacepoints": without_spacepoints(random_event(rng(), 1)),
    "duplicate hit ids": random_event(rng(), 120, duplicates=True),
    "huge times": with_column(random_event(rng(), 80, duplicates=True), "local_time", 1e30, 7),
    "large charges": with_column(random_event(rng(), 300), "integral", 3e3, 5),
    "huge charges": with_column(random_event(rng(), 300), "integral", 9e5, 5),
}
# Where nugraph's own single precision is off by more than is allowed: the test of charges judges.
IMPRECISE = {("huge charges", "per-plane")}
PRECISE = [each for each in itertools.product(EVENTS, KINDS) if each not in IMPRECISE]


@pytest.mark.parametrize(("name", "kind"), PRECISE)
def test_compiled_answers_equal_those_of_nugraph(
    name: str, kind: str, runtimes: dict[str, Runtime]
) -> None:
    event = EVENTS[name]
    expected = answer(model_of(kind, 0), build_graph(event))
    outputs = runtimes[kind].infer(event)
    assert disagreements(expected, outputs) == []
    assert all(array.flags.c_contiguous for array in outputs.values())


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_events_in_a_batch_get_the_answers_they_get_alone(
    kind: str, runtimes: dict[str, Runtime]
) -> None:
    events = [EVENTS[name] for name in ("60 hits", "0 hits", "1 hits", "duplicate hit ids")]
    together = runtimes[kind].infer_batch(events).outputs
    for event, outputs in zip(events, together, strict=True):
        assert disagreements(runtimes[kind].infer(event), outputs) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("charge", [1e5, 9e5])
def test_compiled_answers_to_huge_charges_are_as_precise_as_nugraphs(
    kind: str, charge: float, runtimes: dict[str, Runtime]
) -> None:
    """Where single precision itself is off, by up to some thousandths.

    Which of two implementations is nearer to double precision is then chance for one event.
    """
    distances = []
    for seed in range(9):
        plain = random_event(np.random.default_rng(seed), 300)
        event = with_column(plain, "integral", charge, 5)
        graph = build_graph(event)
        exact = answer(reference(kind, 0), graph, torch.float64)
        answers = answer(model_of(kind, 0), graph), runtimes[kind].infer(event)
        distances.append([distance(exact, outputs) for outputs in answers])
    nugraphs, ours = np.median(distances, axis=0)
    assert ours <= 1.5 * nugraphs


def distance(exact: dict[str, NDArray[Any]], outputs: Outputs) -> float:
    """Return the largest difference, in units of the output's largest number."""
    return max(
        float(np.abs(outputs[name] - array).max() / np.abs(array).max())
        for name, array in exact.items()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "value"), [("integral", 9e5), ("rms", 1e6), ("local_time", 1e12)]
)
def test_large_numbers_in_double_precision_equal_nugraphs(
    kind: str, column: str, value: float
) -> None:
    event = with_column(random_event(rng(), 150, duplicates=True), column, value, 4)
    graph = build_graph(event)
    expected = answer(reference(kind, 2), graph, torch.float64)
    actual = run(rewritten(model_of(kind, 2), kind, torch.float64), [graph], torch.float64)
    for name, array in expected.items():
        scale = np.abs(array).max(initial=0)
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-9 * scale)


@pytest.fixture
def copied(directories: dict[str, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a model folder and the compiled folder's own copy for it below ``tmp_path``."""
    directory = directories["24.7.1"]
    found = compile_model(directory, ROOT)
    copy = tmp_path / found.name
    shutil.copytree(found, copy)
    assert Runtime.load(directory, compiled=tmp_path).is_compiled
    return directory, copy


def renew(path: Path, content: bytes) -> None:
    """Put a new file in the place of one that this process may have mapped."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def reason(directory: Path, root: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Return the one line that says why a model runs uncompiled, and check that it answers."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        runtime = Runtime.load(directory, compiled=root)
    assert not runtime.is_compiled
    expected = answer(model_of("24.7.1", 0), build_graph(EVENTS["60 hits"]))
    assert disagreements(expected, runtime.infer(EVENTS["60 hits"])) == []
    (record,) = caplog.records
    message = record.getMessage()
    assert "runs uncompiled" in message
    assert "\n" not in message
    return message


def test_without_a_compiled_network_a_model_runs_uncompiled(
    directories: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "is missing" in reason(directories["24.7.1"], tmp_path / "none", caplog)


def test_a_damaged_or_foreign_library_is_not_loaded(
    copied: tuple[Path, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, folder = copied
    library, facts = folder / "iteration.so", folder / "facts.json"
    content, text = library.read_bytes(), facts.read_text()

    renew(library, content[:-1] + bytes([content[-1] ^ 1]))
    assert "is damaged" in reason(directory, folder.parent, caplog)
    renew(library, content[:1000])
    assert "is damaged" in reason(directory, folder.parent, caplog)
    library.unlink()
    assert "is missing" in reason(directory, folder.parent, caplog)
    renew(library, content)
    facts.write_text("{")
    assert "cannot be read" in reason(directory, folder.parent, caplog)
    facts.write_text(json.dumps(json.loads(text) | {"torch": "1.0"}))
    assert "is damaged" in reason(directory, folder.parent, caplog)
    facts.write_text(text)
    library.chmod(0o777)
    assert "writable by all" in reason(directory, folder.parent, caplog)
    library.chmod(0o755)
    assert Runtime.load(directory, compiled=folder.parent).is_compiled
    another = Target(torch.device("cpu"), "another")
    monkeypatch.setattr(compiled, "targets_of", lambda _device: (another,))
    assert "is missing" in reason(directory, folder.parent, caplog)


def test_a_file_that_is_no_library_is_not_loaded_even_with_the_right_digest(
    directories: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = directories["24.7.1"]
    found = compile_model(directory, ROOT)
    facts = json.loads((found / "facts.json").read_text())
    (tmp_path / found.name).mkdir()
    (tmp_path / found.name / "iteration.so").write_bytes(b"nonsense")
    facts["sha256"] = hashlib.sha256(b"nonsense").hexdigest()
    (tmp_path / found.name / "facts.json").write_text(json.dumps(facts))
    assert "cannot be loaded" in reason(directory, tmp_path, caplog)


@pytest.mark.parametrize("compiled_in", [None, ROOT])
def test_one_thread_does_all_the_work_whatever_the_environment_says(
    directories: dict[str, Path], compiled_in: Path | None
) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from numl_serving.golden import read_event\n"
        "from numl_serving.runtime import Runtime\n"
        "directory, compiled = Path(sys.argv[1]), sys.argv[2] or None\n"
        "runtime = Runtime.load(directory, compiled=compiled)\n"
        "event = read_event(directory / 'golden.npz')\n"
        "runtime.infer(event)\n"
        "all_threads, this_thread = time.process_time(), time.thread_time()\n"
        "for _ in range(200):\n"
        "    runtime.infer(event)\n"
        "print((time.thread_time() - this_thread) / (time.process_time() - all_threads))\n"
    )
    # Nobody has told OpenMP or MKL how many threads to use: they take a thread for each core.
    unset = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code, str(directories["24.7.1"]), str(compiled_in or "")]
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    assert float(done.stdout) > 0.9


def test_what_was_compiled_for_a_lower_level_is_used_where_there_is_nothing_better(
    directories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    better = Target(torch.device("cpu"), "x86-64-v9")
    monkeypatch.setattr(compiled, "targets_of", lambda _device: (better, choose_target()))
    assert Runtime.load(directories["24.7.1"], compiled=ROOT).is_compiled


def test_an_environment_may_bring_compiled_networks_of_its_own(
    copied: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory, folder = copied
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert compiled.own_folder() is None
    shutil.copytree(folder, tmp_path / "env" / "lib" / "numl_serving" / "compiled" / folder.name)
    assert check.main([str(directory)]) == 0
    _, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert report == {"model": str(directory), "ok": True, "error": None, "compiled": True}


def test_nobody_s_files_are_used_only_where_nobody_can_write_them(
    copied: tuple[Path, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, folder = copied
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(folder / "iteration.so", 65534, 65534)
    assert "belongs to somebody else" in reason(directory, folder.parent, caplog)
    read_only = (*os.statvfs(folder)[:8], os.ST_RDONLY, 255)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(read_only))
    assert Runtime.load(directory, compiled=folder.parent).is_compiled


def test_a_level_that_the_processor_lacks_is_not_compiled_for() -> None:
    with pytest.raises(CompiledError, match="this processor has no x86-64-v9, only"):
        choose_target(level="x86-64-v9")


def test_each_architecture_code_and_torch_has_its_own_folder() -> None:
    networks = {kind: rewritten(model_of(kind, 0), kind) for kind in KINDS}
    target = choose_target()
    facts = {kind: facts_of(network, target) for kind, network in networks.items()}
    other_weights = facts_of(rewritten(model_of("nugraph2", 1), "nugraph2"), target)
    assert other_weights == facts["nugraph2"]
    folders = {folder_of(ROOT, each) for each in facts.values()}
    folders |= {folder_of(ROOT, facts["nugraph2"] | {name: "x"}) for name in facts["nugraph2"]}
    assert len(folders) == len(KINDS) + len(facts["nugraph2"])


def test_without_a_compiler_compilation_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    network = rewritten(model_of("nugraph2", 0), "nugraph2")
    with pytest.raises(
        CompiledError, match=r"no C\+\+ compiler: no-such-compiler is not installed"
    ):
        compile_network(network, NORMALISATION, tmp_path / "root", choose_target())
    assert not (tmp_path / "root").exists()


def test_a_compilation_leaves_nothing_but_the_same_bytes_as_any_other(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    home, temporary, root = (tmp_path / name for name in ("home", "tmp", "root"))
    home.mkdir()
    temporary.mkdir()
    kept = {"PATH", "LANG", "CXX", "LIBRARY_PATH", "CPATH"}
    variables = {name: value for name, value in os.environ.items() if name in kept}
    variables |= {"HOME": str(home), "TMPDIR": str(temporary)}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "numl_serving.compile", str(directories["nugraph2"])]
    subprocess.run([*command, "--out", str(root)], env=variables, check=True)
    assert [*temporary.rglob("*"), *home.rglob("*")] == []
    (made,) = root.iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["facts.json", "iteration.so"]
    for path in made.iterdir():
        assert path.read_bytes() == (ROOT / made.name / path.name).read_bytes()


def test_a_compilation_that_fails_leaves_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    before = dict(os.environ)
    network = rewritten(model_of("nugraph2", 0), "nugraph2")
    with pytest.raises(CompiledError, match="false fails: exit status 1"):
        compile_network(network, NORMALISATION, tmp_path, choose_target())
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []
