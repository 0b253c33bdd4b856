"""A loaded model answers events as nugraph does, the real weights and the real event included."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import (
    REAL_ANSWER,
    REAL_CHECKPOINT,
    REAL_NORM,
    model_directory,
    norm_file,
    real_event,
)
from numl_serving import check
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event, HitTable
from numl_serving.golden import Golden, disagreements, read_golden, write_golden
from numl_serving.importer import Request, import_checkpoint
from numl_serving.runtime import Runtime
from oracle import KINDS, random_event


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: model_directory(kind, folder / kind) for kind in KINDS}


def test_the_real_weights_give_the_expected_answer_to_the_real_event(
    tmp_path: Path, real_data: Path
) -> None:
    out = tmp_path / "model"
    report = import_checkpoint(
        Request(real_data / REAL_CHECKPOINT, "nugraph3", out, norm_file(tmp_path, REAL_NORM))
    )
    assert report.card.variant == "per-plane"
    assert report.card.event_classes == ("cc_nue", "cc_numu", "cc_nutau", "nc")
    assert "__builtin__.getattr" in report.ignored_globals
    with np.load(real_data / REAL_ANSWER) as arrays:
        expected = dict(arrays)
    outputs = Runtime.load(out).infer(real_event(real_data))
    assert disagreements(expected, outputs) == []
    for name, array in expected.items():
        assert outputs[name].dtype == np.float32
        if array.ndim == 2:
            np.testing.assert_array_equal(outputs[name].argmax(1), array.argmax(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_gives_the_answer_of_nugraph(
    kind: str, directories: dict[str, Path]
) -> None:
    golden = read_golden(directories[kind] / "golden.npz")
    runtime = Runtime.load(directories[kind])
    outputs = runtime.infer(golden.event)
    assert disagreements(golden.outputs, outputs) == []
    assert runtime.card.architecture == ("nugraph2" if kind == "nugraph2" else "nugraph3")
    assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_every_event_its_own_rows(kind: str, directories: dict[str, Path]) -> None:
    rng = np.random.default_rng(6)
    events = [random_event(rng, hits) for hits in (30, 0, 1, 90)]
    runtime = Runtime.load(directories[kind])
    result = runtime.infer_batch(events)
    assert result.preprocess_s > 0
    assert result.network_s > 0
    for event, outputs in zip(events, result.outputs, strict=True):
        assert disagreements(runtime.infer(event), outputs) == []
        for index, plane in enumerate("uvy"):
            hits = int((event.hits.local_plane == index).sum())
            assert outputs[f"x_semantic_{plane}"].shape == (hits, 7 if kind == "per-plane" else 5)
            assert outputs[f"x_filter_{plane}"].shape == (hits,)
        if kind != "nugraph2":
            assert outputs["e_evt"].shape == (1, 4 if kind == "per-plane" else 3)
            assert outputs["v_evt"].shape == (1, 3)


def test_no_events_give_no_answers(directories: dict[str, Path]) -> None:
    assert Runtime.load(directories["nugraph2"]).infer_batch([]).outputs == []


def test_positions_are_read_only_by_a_model_that_was_trained_with_them(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    event = random_event(np.random.default_rng(7), 100, positions=True)
    tensors = {n: a for n, a in event.tensors().items() if "position" not in n}
    bare = Event.from_tensors(tensors)
    without = Runtime.load(directories["24.7.1"])
    assert disagreements(without.infer(bare), without.infer(event)) == []

    for file in directories["24.7.1"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change_card(tmp_path, spacepoint_positions=True)
    trained_with = Runtime.load(tmp_path)
    assert disagreements(trained_with.infer(bare), trained_with.infer(event)) != []
    assert disagreements(without.infer(bare), trained_with.infer(bare)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_float32_arithmetic_are_an_error_of_the_event(
    kind: str, directories: dict[str, Path]
) -> None:
    event = random_event(np.random.default_rng(3), 30)
    columns = {name: getattr(event.hits, name) for name in HitTable.__slots__}
    columns["rms"] = np.full(30, 2e38, np.float32)
    columns["rms"][4] = 3e38
    absurd = Event(HitTable(**columns), event.spacepoints)
    runtime = Runtime.load(directories[kind])
    if kind == "nugraph2":  # its tanh bounds everything
        assert all(np.isfinite(array).all() for array in runtime.infer(absurd).values())
    else:
        with pytest.raises(EventError, match=r"hit_table.rms has magnitude 3e\+38 in row 4"):
            runtime.infer(absurd)


def change_card(directory: Path, **changes: object) -> None:
    path = directory / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(directory: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        Runtime.load(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_files_that_do_not_fit_together_are_refused(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    def fresh(name: str) -> Path:
        copy = tmp_path / name
        copy.mkdir()
        for file in directories["24.7.1"].iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        return copy

    assert "model.json cannot be read" in refusal(tmp_path / "absent")
    copy = fresh("no weights")
    (copy / "weights.safetensors").unlink()
    assert "weights.safetensors cannot be read" in refusal(copy)
    copy = fresh("other weights")
    other = directories["nugraph2"] / "weights.safetensors"
    (copy / "weights.safetensors").write_bytes(other.read_bytes())
    assert "sha256 differs" in refusal(copy)
    copy = fresh("other widths")
    sizes = {"planar_features": 64, "nexus_features": 32, "interaction_features": 32}
    change_card(copy, hyperparameters=sizes | {"iterations": 5})
    assert "are not those that model.json describes" in refusal(copy)
    copy = fresh("other variant")
    change_card(copy, variant="per-plane")
    assert "are not those that model.json describes" in refusal(copy)


def test_the_number_of_threads_is_set_on_loading(directories: dict[str, Path]) -> None:
    before = torch.get_num_threads()
    try:
        Runtime.load(directories["nugraph2"], threads=2)
        assert torch.get_num_threads() == 2
        Runtime.load(directories["nugraph2"], threads=None)
        assert torch.get_num_threads() == 2
        Runtime.load(directories["nugraph2"])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_check_tells_of_each_model_and_of_the_interpreter(
    directories: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main([str(path) for path in directories.values()]) == 0
    interpreter, *models = map(json.loads, capsys.readouterr().out.splitlines())
    assert interpreter["prefix"] == sys.prefix
    assert interpreter["numpy"] == np.__version__
    assert models == [
        {"model": str(path), "ok": True, "error": None, "compiled": False}
        for path in directories.values()
    ]

    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in directories["nugraph2"].iterdir():
        (wrong / file.name).write_bytes(file.read_bytes())
    golden = read_golden(wrong / "golden.npz")
    outputs = golden.outputs | {"x_filter_u": golden.outputs["x_filter_u"] + 0.01}
    write_golden(wrong / "golden.npz", Golden(golden.event, outputs))
    assert check.main([str(wrong), str(tmp_path / "absent")]) == 1
    _, first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["ok"] is False
    assert "x_filter_u: differs by up to 0.01" in first["error"]
    assert "golden.npz is missing" in second["error"]


def test_a_class_may_differ_only_where_scores_are_equal_within_the_tolerance() -> None:
    expected = {"x": np.array([[1.0, 1.00005], [0.2, 0.9]])}
    assert disagreements(expected, {"x": np.array([[1.00003, 1.00001], [0.2, 0.9]])}) == []
    assert disagreements(expected, {"x": np.array([[1.0, 1.00005], [0.9, 0.2]])}) != []
    assert disagreements(expected, {"x": np.full((2, 2), np.nan)}) != []
    assert "shape" in disagreements(expected, {"x": np.zeros((1, 2))})[0]
    assert "instead of" in disagreements(expected, {})[0]
