"""A loaded model answers each event by itself; what fails for one is the result of that one."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from checkpoint_files import CHECKOUT
from numl_serving import check, runtime
from numl_serving.batches import Limits
from numl_serving.errors import EventError, ModelFilesError, NetworkError
from numl_serving.event import Event
from numl_serving.importer import Request, import_checkpoint
from numl_serving.runtime import Runtime
from small_models import CARDS, NUGRAPH3, random_event, write_model

from numl_formats.card import ModelCard
from numl_formats.golden import GoldenEvent, disagreements, read_golden, write_golden

DEVICES = ["cpu", "torch-cpu"]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Models with golden answers of their own."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: with_golden(write_model(folder / kind, card)) for kind, card in CARDS.items()}


def with_golden(folder: Path) -> Path:
    loaded = Runtime.load(folder, device="torch-cpu")
    event = random_event(0, 120, schema=loaded.card.schema)
    write_golden(folder / "golden.npz", GoldenEvent(event.tensors(), loaded.infer(event)))
    return folder


REAL_NORM = CHECKOUT / "tests" / "real_norm.json"
"""The feature normalisation of the real weights, which their checkpoint does not hold."""


def real_event(real_data: Path) -> Event:
    """Read the real event."""
    with h5py.File(real_data / "uboone_event_189hits.h5") as file:
        hits, spacepoints = file["hit_table"], file["spacepoint_table"]
        tensors = {
            f"hit_table_{name}": hits[name][:, 0]
            for name in ("hit_id", "local_plane", "local_time", "local_wire", "integral", "rms")
        }
        tensors["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"][:, 0]
        for axis, plane in enumerate("uvy"):
            tensors[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, axis]
    return Event.from_tensors(tensors)


@pytest.mark.parametrize("device", DEVICES)
def test_the_real_weights_give_the_expected_answer_to_the_real_event(tmp_path, device, real_data):
    out = tmp_path / "model"
    import_checkpoint(Request(real_data / "nugraph3_hierarchical.ckpt", "nugraph3", out, REAL_NORM))
    with np.load(real_data / "uboone_event_189hits.nugraph3_expected.npz") as arrays:
        expected = dict(arrays)
    outputs = Runtime.load(out, device=device).infer(real_event(real_data))
    assert disagreements(expected, outputs) == []
    for name, array in expected.items():
        assert outputs[name].dtype == np.float32
        if array.ndim == 2:
            np.testing.assert_array_equal(outputs[name].argmax(1), array.argmax(1))


@pytest.mark.parametrize("kind", CARDS)
@pytest.mark.parametrize("hits", [0, 1, 2, 40, 300])
def test_the_native_library_and_pytorch_give_the_same_answer(kind, hits, directories):
    native, torch = (Runtime.load(directories[kind], device=device) for device in DEVICES)
    event = random_event(hits, hits, schema=native.card.schema)
    clusters = native.card.clusters
    assert disagreements(torch.infer(event), native.infer(event), clusters) == []


@pytest.mark.parametrize("kind", CARDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("limits", "batches"), [(Limits(), 1), (Limits(hits=100), 2), (Limits(edges=1), 3)]
)
def test_a_batch_gives_every_event_its_own_rows(kind, device, limits, batches, directories):
    loaded = Runtime.load(directories[kind], device=device, limits=limits)
    schema = loaded.card.schema
    events = [random_event(hits, hits, schema=schema) for hits in (30, 0, 1, 90)]
    result = loaded.infer_batch(events)
    assert result.network_s > 0
    assert result.batches == (4 if device == "cpu" else batches)
    for event, outputs in zip(events, result.outputs, strict=True):
        assert isinstance(outputs, dict)
        assert disagreements(loaded.infer(event), outputs, loaded.card.clusters) == []
        assert_declared(outputs, event, loaded.card)


def assert_declared(outputs: dict[str, Any], event: Event, card: ModelCard) -> None:
    """Check names, types and shapes against the card."""
    assert list(outputs) == [tensor.name for tensor in card.outputs]
    for tensor in card.outputs:
        array, plane = outputs[tensor.name], tensor.name.rpartition("_")[2]
        assert array.dtype == tensor.dtype
        if plane == "evt":
            assert array.shape == (1, tensor.dims[-1])
            continue
        rows = int((event.hit("local_plane") == card.planes.index(plane)).sum())
        assert array.shape == (rows, *tensor.dims[1:])


@pytest.mark.parametrize("device", DEVICES)
def test_no_events_give_no_answers(device, directories):
    loaded = Runtime.load(directories["nugraph2"], device=device)
    assert list(loaded.infer_batch([]).outputs) == []


class Failing:
    """Stands in for the native library: what it does is decided by an event's hits."""

    def __init__(self, card: ModelCard, weights: Any) -> None:
        pass

    def timed(self, event: Event) -> tuple[dict[str, Any], float]:
        match event.num_hits:
            case 2:
                raise EventError("the event unfolds into too many edges")
            case 3:
                raise MemoryError("std::bad_alloc")
        return {"x": event.hit("hit_id")}, 0.25


def test_an_event_that_fails_fails_alone(directories, monkeypatch):
    monkeypatch.setattr(runtime, "NativeModel", Failing)
    loaded = Runtime.load(directories["nugraph3"])
    events = [random_event(0, hits) for hits in (1, 2, 3, 4)]
    batch = loaded.infer_batch(events)
    assert batch.preprocess_s == 0.5, "the graphs of the events that were answered"
    good, exploding, failing, other = batch.outputs
    assert isinstance(good, dict)
    assert isinstance(other, dict)
    assert isinstance(exploding, EventError)
    assert str(exploding) == "the event unfolds into too many edges"
    assert isinstance(failing, NetworkError)
    assert str(failing) == "MemoryError: std::bad_alloc"
    with pytest.raises(NetworkError, match="std::bad_alloc"):
        loaded.infer(events[2])


@pytest.mark.parametrize("device", DEVICES)
def test_an_event_that_would_explode_into_edges_is_refused(device, directories):
    loaded = Runtime.load(directories["nugraph3"], device=device)
    event = random_event(0, 4000, schema=loaded.card.schema)
    same = {
        name: np.zeros_like(column) if "hit_id" in name or "local_plane" in name else column
        for name, column in event.tensors().items()
    }
    exploding = Event.from_tensors(same, loaded.card.schema)
    refused, answered = loaded.infer_batch([exploding, event]).outputs
    assert isinstance(refused, EventError)
    assert isinstance(answered, dict)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", CARDS)
def test_numbers_beyond_float32_arithmetic_are_an_error_of_the_event(kind, device, directories):
    loaded = Runtime.load(directories[kind], device=device)
    event = random_event(0, 30, schema=loaded.card.schema)
    rms = np.full(30, 2e38, np.float32)
    rms[4] = 3e38
    absurd = Event.from_tensors(event.tensors() | {"hit_table_rms": rms}, loaded.card.schema)
    answer, neighbour = loaded.infer_batch([absurd, event]).outputs
    assert isinstance(neighbour, dict)
    if isinstance(answer, dict):  # nugraph2's tanh bounds everything
        assert kind == "nugraph2"
    else:
        assert str(answer) == (
            "hit_table.rms has magnitude 3e+38 in row 4: "
            "numbers of this size exceed the network's float32 arithmetic"
        )


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    with pytest.raises(ModelFilesError, match=r"model\.json cannot be read"):
        Runtime.load(tmp_path / "absent")
    write_model(tmp_path, NUGRAPH3)
    other = replace(NUGRAPH3, network=replace(NUGRAPH3.network, hit_width=9))
    digest = json.loads((tmp_path / "model.json").read_text())["weights"]
    write_model(tmp_path / "other", other)
    path = tmp_path / "other" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": digest}))
    (tmp_path / "other" / "weights.safetensors").write_bytes(
        (tmp_path / "weights.safetensors").read_bytes()
    )
    with pytest.raises(ModelFilesError, match=r"weight down.gate.weight has shape \[3, 12\]"):
        Runtime.load(tmp_path / "other")


def test_the_check_tells_of_each_model_and_of_the_interpreter(directories, tmp_path, capsys):
    assert check.main([str(path) for path in directories.values()]) == 0
    interpreter, *models = map(json.loads, capsys.readouterr().out.splitlines())
    assert interpreter["prefix"] == sys.prefix
    assert interpreter["numpy"] == np.__version__
    assert models == [
        {"model": str(path), "ok": True, "error": None} for path in directories.values()
    ]
    assert check.main(["--device", "torch-cpu", str(directories["nugraph2"])]) == 0
    capsys.readouterr()

    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in directories["nugraph2"].iterdir():
        (wrong / file.name).write_bytes(file.read_bytes())
    golden = read_golden(wrong / "golden.npz")
    outputs = golden.outputs | {"x_filter_u": golden.outputs["x_filter_u"] + 0.01}
    write_golden(wrong / "golden.npz", GoldenEvent(golden.inputs, outputs))
    assert check.main([str(wrong), str(tmp_path / "absent")]) == 1
    _, first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["ok"] is False
    assert "x_filter_u is off by 0.01" in first["error"]
    assert "no such file" in second["error"]
