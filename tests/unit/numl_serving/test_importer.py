"""Checkpoints become model files: complete, reported, and all together or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from checkpoint_files import CHECKOUT, UVY, checkpoint_of, folder25, model24, norm_file
from numl_serving import generations, importer
from numl_serving.cardfile import read_card
from numl_serving.errors import CheckpointError, ModelFilesError, ServingError
from numl_serving.event import Event, Schema
from numl_serving.example import example_event
from numl_serving.generations import HeadRow
from numl_serving.golden import Golden, disagreements, read_golden, write_golden
from numl_serving.importer import Request, import_checkpoint
from numl_serving.modelcard import ModelCard
from numl_serving.normalisation import normalisation_in, read_metadata, read_normalisation
from numl_serving.runtime import Runtime
from safetensors.numpy import load

KINDS = ("24.7.1", "per-plane", "nugraph2")
FILES = {"weights.safetensors", "model.json", "golden.npz"}
FIRST = ("wire_position", "time_position", "integral", "rms")
PLANE_WIRE_TIME = ("local_plane", "local_wire", "local_time")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def request_for(kind: str, folder: Path, **changes: Any) -> Request:
    """Return the request to import a new model of 24.7.1 or before."""
    if kind == "per-plane":
        changes = {"semantic_classes": list("abcdefg"), "event_classes": list("abcd")} | changes
    checkpoint = checkpoint_of(model24(kind).state_dict(), folder, **changes)
    architecture = "nugraph2" if kind == "nugraph2" else "nugraph3"
    return Request(checkpoint, architecture, folder / "out", norm_file(folder))


def card25(name: str, out: Path, **more: Any) -> ModelCard:
    """Import a checkpoint of nugraph 25.4; returns the card."""
    kind = "nugraph2" if name.startswith("nugraph2") else "nugraph3"
    return import_checkpoint(Request(folder25() / f"{name}.ckpt", kind, out, **more)).card


def clone(request: Request, seed: int) -> Request:
    """Return a request for the same network with other weights, into the same folder."""
    folder = request.out.parent / f"seed{seed}"
    folder.mkdir()
    state = {name: value + 0.01 * seed for name, value in model24("24.7.1").state_dict().items()}
    return replace(request, checkpoint=checkpoint_of(state, folder))


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_tells_what_was_found(kind: str, tmp_path: Path) -> None:
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


def test_models_of_today_need_no_normalisation(tmp_path: Path) -> None:
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


def test_hit_features_that_nothing_names_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pass --features with 9 names"):
        card25("nine_features", tmp_path / "out")
    nine = (*FIRST, "amplitude", "tpc", *PLANE_WIRE_TIME)
    with pytest.raises(CheckpointError, match="takes 9 features of a hit but --features names 8"):
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
def test_other_detectors_are_imported_with_the_features_they_name(
    kind: str, planes: tuple[str, ...], tmp_path: Path
) -> None:
    model = model24(kind, planes=list(planes), in_features=5)
    checkpoint = checkpoint_of(model.state_dict(), tmp_path, planes=list(planes))
    norm = norm_file(tmp_path, {p: {"mean": [1] * 5, "std": [2] * 5} for p in planes})
    architecture = "nugraph3" if kind == "24.7.1" else kind
    request = Request(checkpoint, architecture, tmp_path / "out", norm)
    assert "pass --features with 5 names" in refused(request)
    card = import_checkpoint(replace(request, features=(*FIRST, "goodness"))).card
    assert (card.planes, card.position_scale) == (planes, (0.3, 0.055))
    assert card.hit_features[-1] == "goodness"
    golden = read_golden(tmp_path / "out" / "golden.npz")
    assert golden.outputs.keys() == {tensor.name for tensor in card.outputs}


def processed_file(path: Path, generation: int | None, norm: bool, **names: list[str]) -> Path:
    """Write what pynuml's processed files say of all their graphs."""
    with h5py.File(path, "w") as file:
        for name, values in names.items():
            file[name] = values
        file["dataset/r1_sr1_evt1"] = 0
        if generation is not None:
            file["gen"] = torch.tensor([generation])
        if norm:
            for plane in names["planes"]:
                file[f"norm/{plane}"] = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    return path


def test_the_processed_file_tells_what_the_checkpoint_does_not(tmp_path: Path) -> None:
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


def test_planes_are_those_of_the_checkpoint_unless_given(tmp_path: Path) -> None:
    request = request_for("24.7.1", tmp_path, planes=None)
    report = import_checkpoint(request)
    assert report.card.planes == UVY
    assert "planes not in the checkpoint: took u, v, y" in report.notes
    turned = replace(request, planes=("y", "v", "u"))
    assert import_checkpoint(turned).card.planes == ("y", "v", "u")
    card = card25("default", tmp_path / "default", planes=("a", "b"))
    assert card.planes == ("a", "b"), "weights that all planes share do not tell the planes"


def test_classes_may_be_given_and_must_fit(tmp_path: Path) -> None:
    request = request_for("nugraph2", tmp_path, semantic_classes=None)
    five = replace(request, classes={"semantic": tuple("vwxyz")})
    assert import_checkpoint(five).card.heads[0].classes == tuple("vwxyz")
    with pytest.raises(CheckpointError, match="5 semantic classes but there are 4 names"):
        import_checkpoint(replace(request, classes={"semantic": tuple("vwxy")}))


def test_a_missing_number_of_iterations_is_assumed_and_noted(tmp_path: Path) -> None:
    report = import_checkpoint(request_for("nugraph2", tmp_path, num_iters=None))
    assert report.card.network.iterations == 5
    assert any("iterations" in note for note in report.notes)


def test_a_new_head_with_classes_needs_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_cannot_be_served_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    state = model24("24.7.1").state_dict()
    request = request_for("24.7.1", tmp_path)
    assert "pass --norm with" in refused(replace(request, norm=None))
    assert "import them with --model nugraph3" in refused(replace(request, architecture="nugraph2"))
    assert "with planes u, v:" in refused(replace(request, planes=("u", "v")))
    assert "no feature normalisation" in refused(replace(request, norm=norm_file(tmp_path, {})))
    diverged = state | {"encoder.planar_net.bias": torch.full((128,), torch.nan)}
    checkpoint = checkpoint_of(diverged, tmp_path)
    assert "NaN or infinite" in refused(replace(request, checkpoint=checkpoint))
    request = request_for("24.7.1", tmp_path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("array.npy", "empty.npz", "absent.npz"):
        assert "holds no event" in refused(replace(request, event=tmp_path / name))


def test_the_normalisation_of_the_checkpoint_is_used_where_none_is_given(tmp_path: Path) -> None:
    norm = {p: torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.5]]) for p in UVY}
    request = replace(request_for("nugraph2", tmp_path, norm=norm), norm=None)
    card = import_checkpoint(request).card
    assert card.normalisation is not None
    assert card.normalisation["v"] == ((1, 2, 3, 4), (5, 6, 7, 8.5))


@pytest.mark.parametrize("kind", ["json", "hdf5", "npz"])
def test_a_normalisation_is_read_from_each_kind_of_file(tmp_path: Path, kind: str) -> None:
    planes = ("w", "x", "y", "z")
    rows = {plane: np.array([[0.1, 2.5, 3], [4, 5, 6]], np.float32) for plane in planes}
    path = tmp_path / "norm"
    if kind == "json":
        content = {p: {"mean": [0.1, 2.5, 3], "std": [4, 5, 6]} for p in planes}
        path = norm_file(tmp_path, content)
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez(file, **rows)
    else:
        with h5py.File(path, "w") as file:
            for plane, row in rows.items():
                file[f"norm/{plane}"] = row
    found = read_normalisation(path, planes, 3)
    assert found == dict.fromkeys(planes, ((0.1, 2.5, 3), (4, 5, 6)))
    with pytest.raises(ModelFilesError, match="needs 4 means"):
        read_normalisation(path, planes, 4)
    with pytest.raises(ModelFilesError, match="norm"):
        read_normalisation(path, ("u", "v"), 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"PK\x03\x04",
        b"\x89HDF\r\n\x1a\n",
        b"[1, 2]",
        b'{"u": 1, "v": 2, "y": 3}',
        b'{"u": {"mean": [1, 1, 1, 1], "std": [1, 1, 0, 1]}, "v": {}, "y": {}}',
    ],
)
def test_a_file_without_a_normalisation_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "norm"
    path.write_bytes(content)
    with pytest.raises(ModelFilesError, match="norm") as caught:
        read_normalisation(path, UVY, 4)
    assert "\n" not in str(caught.value)


def test_a_standard_deviation_of_zero_is_refused() -> None:
    rows = {plane: [[1.0] * 4, [1.0, 0.0, 1.0, 1.0]] for plane in "uvy"}
    with pytest.raises(ModelFilesError, match="must be positive"):
        normalisation_in(rows, UVY, 4)


def test_without_h5py_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = processed_file(tmp_path / "a.h5", None, norm=True, planes=list(UVY))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModelFilesError, match="pip install h5py, or give the normalisation as"):
        read_normalisation(path, UVY, 4)
    assert read_metadata(norm_file(tmp_path)) == {}


def test_a_golden_answer_is_computed_for_a_given_event(tmp_path: Path) -> None:
    schema = Schema.of(UVY, ["extra"], positions=False)
    request = replace(request_for("24.7.1", tmp_path), event=tmp_path / "event.npz")
    write_golden(tmp_path / "event.npz", Golden(example_event(schema), {}))
    assert "tensor hit_table_extra is not a column of this model" in refused(request)
    schema = Schema.of(UVY, positions=False)
    tensors = example_event(schema).tensors() | {"hit_table_rms": np.full(180, 3, np.float32)}
    event = Event.from_tensors(tensors, schema)
    write_golden(tmp_path / "event.npz", Golden(event, {}))
    import_checkpoint(request)
    golden = read_golden(request.out / "golden.npz")
    assert (golden.event.hit("rms") == 3).all()
    assert disagreements(Runtime.load(request.out).infer(golden.event), golden.outputs) == []


@pytest.mark.parametrize("positions", [False, True])
def test_an_event_is_made_up_for_any_detector(positions: bool) -> None:
    schema = Schema.of(("a", "b", "c", "d"), ["tpc", "amplitude"], positions=positions)
    event = example_event(schema)
    assert set(np.bincount(event.hit("local_plane"))) == {60}
    assert (event.num_spacepoints, event.has_positions) == (60, positions)
    assert (event.hit("tpc") == 0).all()
    ids = event.hit("hit_id")[event.hit("local_plane") == 3]
    assert set(event.spacepoint("hit_id_d")) == set(ids)
    again = example_event(schema)
    assert all(np.array_equal(event.columns[n], again.columns[n]) for n in event.columns)


def test_importing_again_replaces_the_weights_and_the_golden_answer_alike(tmp_path: Path) -> None:
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    out = request.out
    (out / "model.py").write_text("# stays")
    before = read_golden(out / "golden.npz")
    import_checkpoint(clone(request, 1))
    after = read_golden(out / "golden.npz")
    assert disagreements(before.outputs, after.outputs) != []
    assert disagreements(after.outputs, Runtime.load(out).infer(before.event)) == []
    assert names_in(out) == {*FILES, "model.py"}
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


def test_the_event_of_another_detector_is_not_kept(tmp_path: Path) -> None:
    card25("two_planes", tmp_path / "out")
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    assert read_golden(request.out / "golden.npz").event.hit("local_plane").max() == 2


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_replacement_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    out = request.out
    (out / "model.py").write_text("# stays")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
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
        import_checkpoint(clone(request, 1))
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


def test_links_to_shared_files_are_replaced_and_not_followed(tmp_path: Path) -> None:
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    shared = request.out
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in before:
        (linked / name).symlink_to(Path("..") / "out" / name)
    import_checkpoint(replace(clone(request, 1), out=linked))
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == before
    assert not any(path.is_symlink() for path in linked.iterdir())
    Runtime.load(linked)


def test_the_weights_file_is_what_the_format_says() -> None:
    weights = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32(2.5).reshape(())}
    content = importer.safetensors(weights)
    assert content == importer.safetensors(dict(reversed(weights.items())))
    read = load(content)
    assert read.keys() == weights.keys()
    for name, array in weights.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = CHECKOUT / "scripts" / "import_checkpoint.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_prints_a_report_or_one_line(tmp_path: Path) -> None:
    request = request_for("24.7.1", tmp_path, planes=None)
    out = ("--model", "nugraph3", "--out", tmp_path / "out")
    given = ("--norm", request.norm, "--planes", "u,v,y", "--position-scale", "1,0.5",
             "--features", "wire_position,time_position,integral,rms",
             "--event-classes", "a, b,c")  # fmt: skip
    done = run_script(request.checkpoint, *out, *given, "--json")
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)["card"]
    assert card["network"]["generation"] == "24.7.1"
    assert card["position_scale"] == [1, 0.5]
    assert [head["classes"] for head in card["heads"] if head["name"] == "event"] == [list("abc")]
    assert names_in(tmp_path / "out") == FILES, "a launch needs a golden answer"
    done = run_script(request.checkpoint, *out, *given)
    assert "hit features" in done.stdout
    failed = run_script(request.checkpoint, *out)
    assert failed.returncode == 1
    assert failed.stdout == ""
    # Before it may stand that an environment is made.
    assert failed.stderr.splitlines()[-1].startswith("error: model.ckpt: no feature normalisation")
    assert failed.stderr.count("error: ") == 1
