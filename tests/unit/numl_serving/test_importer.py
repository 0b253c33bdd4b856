"""Checkpoints become model files: complete, reported, and replaced all together or not at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import (
    FILES,
    UVY,
    architecture,
    checkpoint_of,
    folder25,
    model24,
    names_in,
    norm_file,
    processed_file,
    request_for,
)
from numl_serving import generations
from numl_serving.errors import CheckpointError, ServingError
from numl_serving.event import Event
from numl_serving.example import example_event
from numl_serving.generations import HeadRow
from numl_serving.importer import Request, import_checkpoint
from numl_serving.normalisation import read_metadata
from numl_serving.runtime import Runtime
from oracle import KINDS
from safetensors.numpy import load

from numl_formats.card import ModelCard
from numl_formats.cardfile import read_card
from numl_formats.contract import Schema
from numl_formats.golden import GoldenEvent, difference, disagreements, read_golden, write_golden

FIRST = ("wire_position", "time_position", "integral", "rms")
PLANE_WIRE_TIME = ("local_plane", "local_wire", "local_time")


def card25(name: str, out: Path, **more: Any) -> ModelCard:
    """Import a checkpoint of nugraph 25.4; returns the card."""
    request = Request(folder25() / f"{name}.ckpt", architecture(name), out, **more)
    return import_checkpoint(request).card


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_tells_what_was_found(kind, tmp_path):
    report = import_checkpoint(request_for(kind, tmp_path))
    card = read_card(tmp_path / "out" / "model.json")
    assert card == report.card
    assert card.network.generation == ("per-plane" if kind == "per-plane" else "24.7.1")
    assert (card.network.iterations, card.planes, card.hit_features) == (5, UVY, FIRST)
    assert card.position_scale == (0.3, 0.055)
    assert card.heads[0].classes == tuple("abcdefg" if kind == "per-plane" else "abcde")
    content = report.as_dict()
    assert json.loads(json.dumps(content)) == content
    reads_positions = card.network.nexus_start == "position"
    assert any("reads spacepoint positions" in note for note in report.notes) is reads_positions
    assert names_in(tmp_path / "out") == FILES
    weights = load((tmp_path / "out" / "weights.safetensors").read_bytes())
    assert report.parameters == sum(array.size for array in weights.values())


def test_models_of_today_need_no_normalisation(tmp_path):
    card = card25("default", tmp_path / "default")
    assert card.normalisation is None
    assert (card.hit_features, card.position_scale) == ((*FIRST, "local_plane"), (0.3, 0.055))
    card = card25("two_planes", tmp_path / "two")
    assert (card.planes, card.network.iterations) == (("x", "y2"), 3)
    assert (card.hit_features, card.position_scale) == ((*FIRST, *PLANE_WIRE_TIME), (1, 1))
    assert "hit_table_tpc" not in [tensor.name for tensor in card.schema.tensors]
    outputs = [tensor.name for tensor in card.outputs]
    assert {"x_position_y2", "of_x", "ox_x", "x_i_x", "x_i_y2", "e_evt", "v_evt"} <= set(outputs)
    card = card25("four_planes", tmp_path / "four")
    assert card.hit_features == (*FIRST, "tpc", *PLANE_WIRE_TIME)
    assert "spacepoint_table_hit_id_w" in [tensor.name for tensor in card.schema.tensors]
    card = card25("nugraph2_four_planes", tmp_path / "nugraph2")
    assert (card.planes, card.heads[0].classes) == (tuple("abcd"), ("s", "t"))


def test_hit_features_that_nothing_names_are_asked_for(tmp_path):
    with pytest.raises(CheckpointError, match="pass --features with 9 names"):
        card25("nine_features", tmp_path / "out")
    nine = (*FIRST, "amplitude", "tpc", *PLANE_WIRE_TIME)
    with pytest.raises(CheckpointError, match="takes 9 hit features but --features names 8"):
        card25("nine_features", tmp_path / "out", features=nine[1:])
    card = card25("nine_features", tmp_path / "second", features=nine)
    assert (card.hit_features, card.position_scale) == (nine, (1, 1))
    assert "hit_table_amplitude" in [tensor.name for tensor in card.schema.tensors]
    first = (*FIRST, *"abcd", "local_plane")
    assert card25("nine_features", tmp_path / "a", features=first).position_scale == (0.3, 0.055)
    card = card25("nine_features", tmp_path / "b", features=first, position_scale=(0.5, 2))
    assert card.position_scale == (0.5, 2)


@pytest.mark.parametrize("planes", [("x", "y"), ("w", "u", "v", "y")])
@pytest.mark.parametrize("kind", ["24.7.1", "nugraph2"])
def test_other_detectors_are_imported_with_the_features_they_name(kind, planes, tmp_path):
    model = model24(kind, planes=list(planes), in_features=5)
    checkpoint = checkpoint_of(model.state_dict(), tmp_path, planes=list(planes))
    norm = norm_file(tmp_path, {p: {"mean": [1] * 5, "std": [2] * 5} for p in planes})
    request = Request(checkpoint, architecture(kind), tmp_path / "out", norm)
    assert "pass --features with 5 names" in refused(request)
    card = import_checkpoint(replace(request, features=(*FIRST, "goodness"))).card
    assert (card.planes, card.position_scale) == (planes, (0.3, 0.055))
    assert card.hit_features[-1] == "goodness"
    golden = read_golden(tmp_path / "out" / "golden.npz")
    assert golden.outputs.keys() == {tensor.name for tensor in card.outputs}


def test_the_processed_file_tells_what_the_checkpoint_does_not(tmp_path):
    request = request_for("nugraph2", tmp_path, planes=None, semantic_classes=None)
    with pytest.raises(CheckpointError, match="pass --semantic-classes"):
        import_checkpoint(request)
    norm = processed_file(
        tmp_path / "a.h5", None, norm=True, planes=list(UVY), semantic_classes=list("vwxyz")
    )
    assert read_metadata(norm)["gen"] == 1
    card = import_checkpoint(replace(request, norm=norm)).card
    assert card.heads[0].classes == tuple("vwxyz")
    assert card.normalisation is not None
    assert card.normalisation["y"].std == (5, 6, 7, 8)
    second = processed_file(tmp_path / "b.h5", 2, norm=False, planes=["x", "y2"])
    # Five features of second-generation graphs are not those that five usually are.
    with pytest.raises(CheckpointError, match="--features"):
        card25("default", tmp_path / "today", norm=second)
    report = import_checkpoint(
        Request(folder25() / "two_planes.ckpt", "nugraph3", tmp_path / "today", second)
    )
    assert report.card.normalisation is None
    assert any("that of --norm is not used" in note for note in report.notes)


def test_planes_are_those_of_the_checkpoint_unless_given(tmp_path):
    request = request_for("24.7.1", tmp_path, planes=None)
    report = import_checkpoint(request)
    assert report.card.planes == UVY
    assert "planes not in the checkpoint: assumed u, v, y" in report.notes
    turned = replace(request, planes=("y", "v", "u"))
    assert import_checkpoint(turned).card.planes == ("y", "v", "u")
    card = card25("default", tmp_path / "default", planes=("a", "b"))
    assert card.planes == ("a", "b"), "weights that all planes share do not tell the planes"


def test_classes_may_be_given_and_must_fit(tmp_path):
    request = request_for("nugraph2", tmp_path, semantic_classes=None)
    five = replace(request, classes={"semantic": tuple("vwxyz")})
    assert import_checkpoint(five).card.heads[0].classes == tuple("vwxyz")
    with pytest.raises(CheckpointError, match="5 semantic classes but there are 4 names"):
        import_checkpoint(replace(request, classes={"semantic": tuple("vwxy")}))


def test_a_missing_number_of_iterations_is_assumed_and_noted(tmp_path):
    report = import_checkpoint(request_for("nugraph2", tmp_path, num_iters=None))
    assert report.card.network.iterations == 5
    assert any("iterations" in note for note in report.notes)


def test_a_new_head_with_classes_needs_one_row(tmp_path, monkeypatch):
    state = dict(model24("24.7.1").state_dict())
    state["flavour_decoder.net.weight"] = torch.randn(2, 32)
    state["flavour_decoder.net.bias"] = torch.randn(2)
    checkpoint = checkpoint_of(state, tmp_path, flavour_classes=["numu", "nue"])
    row = HeadRow("flavour", "f", "event", "softmax", ("flavour_decoder.net",), named_classes=True)
    monkeypatch.setattr(generations, "HEADS", (*generations.HEADS, row))
    out = tmp_path / "out"
    card = import_checkpoint(Request(checkpoint, "nugraph3", out, norm_file(tmp_path))).card
    assert card.heads[-1].classes == ("numu", "nue")
    assert card.outputs[-1].name == "f_evt"
    assert "f_evt" in read_golden(out / "golden.npz").outputs


def refused(request: Request) -> str:
    before = names_in(request.out.parent)
    with pytest.raises(ServingError) as caught:
        import_checkpoint(request)
    assert names_in(request.out.parent) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_cannot_be_served_is_refused_and_nothing_is_written(tmp_path):
    state = model24("24.7.1").state_dict()
    request = request_for("24.7.1", tmp_path)
    for factor, reason in ((1e300, "NaN or infinite"), (1e38, "no answer to the reference event")):
        changed = {name: factor * array.double() for name, array in state.items()}
        checkpoint = checkpoint_of(changed, tmp_path)
        assert reason in refused(replace(request, checkpoint=checkpoint))
    for iterations in (0, 2**31 - 1, "five"):
        checkpoint = checkpoint_of(state, tmp_path, num_iters=iterations)
        assert f"num_iters is {iterations!r}" in refused(replace(request, checkpoint=checkpoint))
    for names in (["a\n", "\ud800", "c", "d", "e"], ["a,b", "c", "d", "e", "f"]):
        checkpoint = checkpoint_of(state, tmp_path, semantic_classes=names)
        assert "does not name its semantic" in refused(replace(request, checkpoint=checkpoint))
    assert "pass --norm with" in refused(replace(request, norm=None))
    assert "import them with --model nugraph3" in refused(replace(request, architecture="nugraph2"))
    told = refused(replace(request, planes=("u", "v")))
    assert "with planes u, v: missing none, unexpected core" in told
    assert "no feature normalisation" in refused(replace(request, norm=norm_file(tmp_path, {})))
    diverged = state | {"encoder.planar_net.bias": torch.full((128,), torch.nan)}
    checkpoint = checkpoint_of(diverged, tmp_path)
    assert "NaN or infinite" in refused(replace(request, checkpoint=checkpoint))
    request = request_for("24.7.1", tmp_path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("array.npy", "empty.npz", "absent.npz"):
        assert "has no event" in refused(replace(request, event=tmp_path / name))


def test_a_variance_below_zero_is_refused(tmp_path):
    content = torch.load(folder25() / "default.ckpt", weights_only=False)
    content["state_dict"]["encoder.input_norm.norm.var"].fill_(-1)
    torch.save(content, tmp_path / "a.ckpt")
    request = Request(tmp_path / "a.ckpt", "nugraph3", tmp_path / "out")
    assert "'encoder.weight' has NaN or infinite values" in refused(request)


def test_the_normalisation_of_the_checkpoint_is_used_where_none_is_given(tmp_path):
    norm = {p: torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.5]]) for p in UVY}
    request = replace(request_for("nugraph2", tmp_path, norm=norm), norm=None)
    card = import_checkpoint(request).card
    assert card.normalisation is not None
    assert card.normalisation["v"] == ((1, 2, 3, 4), (5, 6, 7, 8.5))


def test_a_golden_answer_is_computed_for_a_given_event(tmp_path):
    schema = Schema.of(UVY, ["extra"], positions=False)
    request = replace(request_for("24.7.1", tmp_path), event=tmp_path / "event.npz")
    write_golden(tmp_path / "event.npz", GoldenEvent(example_event(schema).tensors(), {}))
    assert "tensor hit_table_extra is not a column of this model" in refused(request)
    schema = Schema.of(UVY, positions=False)
    tensors = example_event(schema).tensors() | {"hit_table_rms": np.full(180, 3, np.float32)}
    event = Event.from_tensors(tensors, schema)
    write_golden(tmp_path / "event.npz", GoldenEvent(event.tensors(), {}))
    import_checkpoint(request)
    golden = read_golden(request.out / "golden.npz")
    assert (golden.inputs["hit_table_rms"] == 3).all()
    runtime = Runtime.load(request.out)
    answer = runtime.infer(Event.from_tensors(golden.inputs, runtime.card.schema))
    assert difference(golden, answer) is None


@pytest.mark.parametrize("positions", [False, True])
def test_an_event_is_made_up_for_any_detector(positions):
    schema = Schema.of(("a", "b", "c", "d"), ["tpc", "amplitude"], positions=positions)
    event = example_event(schema)
    assert set(np.bincount(event.hit("local_plane"))) == {60}
    assert (event.num_spacepoints, event.has_positions) == (60, positions)
    assert (event.hit("tpc") == 0).all()
    ids = event.hit("hit_id")[event.hit("local_plane") == 3]
    assert set(event.spacepoint("hit_id_d")) == set(ids)
    again = example_event(schema)
    assert all(np.array_equal(event.columns[n], again.columns[n]) for n in event.columns)


def test_the_event_of_another_detector_is_not_kept(tmp_path):
    card25("two_planes", tmp_path / "out")
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    assert read_golden(request.out / "golden.npz").inputs["hit_table_local_plane"].max() == 2


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What was imported once, and a request to import other weights of the same network."""
    folder = tmp_path_factory.mktemp("imported")
    request = request_for("24.7.1", folder)
    import_checkpoint(request)
    state = {name: value + 0.01 for name, value in model24("24.7.1").state_dict().items()}
    return request.out, replace(request, checkpoint=checkpoint_of(state, folder))


@pytest.fixture
def again(imported, tmp_path):
    """A request to put these in the place of a copy of those."""
    folder, request = imported
    out = shutil.copytree(folder, tmp_path / "out")
    (out / "model.py").write_text("# stays")
    return replace(request, out=out)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_importing_again_replaces_the_weights_and_the_golden_answer_alike(again, tmp_path):
    before = read_golden(again.out / "golden.npz")
    import_checkpoint(again)
    after = read_golden(again.out / "golden.npz")
    assert disagreements(before.outputs, after.outputs) != []
    answer = Runtime.load(again.out).infer(Event.from_tensors(before.inputs))
    assert disagreements(after.outputs, answer) == []
    assert names_in(again.out) == {*FILES, "model.py"}
    assert names_in(tmp_path) == {"out"}


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_replacement_leaves_the_old_files(
    again, tmp_path, monkeypatch, failing, error
):
    before = contents(again.out)
    moves = -1
    rename = Path.rename

    def fail_once(path: Path, target: Path) -> Path:
        nonlocal moves
        if target.is_dir():  # the attempt to put the whole directory into place
            return rename(path, target)
        moves += 1
        if moves == failing:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(type(error)):
        import_checkpoint(again)
    monkeypatch.undo()
    assert contents(again.out) == before
    assert names_in(tmp_path) == {"out"}


def test_links_to_shared_files_are_replaced_and_not_followed(again, tmp_path):
    before = contents(again.out)
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in FILES:
        (linked / name).symlink_to(Path("..") / "out" / name)
    import_checkpoint(replace(again, out=linked))
    assert contents(again.out) == before
    assert not any(path.is_symlink() for path in linked.iterdir())
    Runtime.load(linked)
