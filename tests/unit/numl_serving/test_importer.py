"""Checkpoints become model files: complete, reported, and all together or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from model_files import (
    CHECKOUT,
    checkpoint_of,
    import_reference,
    model_directory,
    norm_file,
)
from numl_serving.errors import CheckpointError, ModelFilesError, ServingError
from numl_serving.golden import Golden, disagreements, read_golden, write_golden
from numl_serving.importer import Request, import_checkpoint
from numl_serving.modelcard import parse_card, read_card
from numl_serving.normalisation import normalisation_in, read_normalisation
from numl_serving.runtime import Runtime
from oracle import KINDS, NORMALISATION, random_event, reference
from safetensors.torch import load_file


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_tells_what_was_found(kind: str, tmp_path: Path) -> None:
    model = reference(kind, 0)
    report = import_reference(kind, model, tmp_path, tmp_path / "out")
    card = read_card(tmp_path / "out" / "model.json")
    assert card == report.card
    assert card.variant == ("per-plane" if kind == "per-plane" else "24.7.1")
    # Modules that the planes share have one set of parameters; temperatures are not served.
    temperatures = sum(name.endswith("temp") for name, _ in model.named_parameters())
    assert report.parameters == sum(p.numel() for p in model.parameters()) - temperatures
    assert card.hyperparameters["iterations"] == 5
    content = report.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["reads_spacepoint_positions"] is (kind == "24.7.1")
    assert names_in(tmp_path / "out") == {"weights.safetensors", "model.json"}
    for name, tensor in load_file(tmp_path / "out" / "weights.safetensors").items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_classes_may_be_given_and_must_fit(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(
        reference("nugraph2", 0).state_dict(), tmp_path, semantic_classes=None
    )
    request = Request(checkpoint, "nugraph2", tmp_path / "out", norm_file(tmp_path))
    with pytest.raises(CheckpointError, match="pass --semantic-classes"):
        import_checkpoint(request)
    five = Request(checkpoint, "nugraph2", tmp_path / "out", request.norm, tuple("vwxyz"))
    assert import_checkpoint(five).card.semantic_classes == tuple("vwxyz")
    four = Request(checkpoint, "nugraph2", tmp_path / "out", request.norm, tuple("vwxy"))
    with pytest.raises(CheckpointError, match="5 semantic classes but there are 4 names"):
        import_checkpoint(four)


def test_a_missing_number_of_iterations_is_assumed_and_noted(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(reference("nugraph2", 0).state_dict(), tmp_path, num_iters=None)
    report = import_checkpoint(
        Request(checkpoint, "nugraph2", tmp_path / "out", norm_file(tmp_path))
    )
    assert report.card.hyperparameters["iterations"] == 5
    assert any("iterations" in note for note in report.notes)


def refused(request: Request) -> str:
    before = names_in(request.out.parent)
    with pytest.raises(ServingError) as caught:
        import_checkpoint(request)
    assert names_in(request.out.parent) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_cannot_be_served_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    norm = norm_file(tmp_path)
    out = tmp_path / "out"
    state = reference("24.7.1", 0).state_dict()
    unshared = "core_net.plane_net.convs.<v___plane___v>.net.0.bias"

    def request(state: dict[str, Any], **changes: Any) -> Request:
        return Request(checkpoint_of(state, tmp_path, **changes), "nugraph3", out, norm)

    assert "only ['u', 'v', 'y']" in refused(request(state, planes=["u", "v"]))
    assert "pass --norm with" in refused(Request(request(state).checkpoint, "nugraph3", out))
    assert "--model nugraph2" in refused(request(reference("nugraph2", 0).state_dict()))
    mixed = state | {unshared: state[unshared] + 1}
    assert "shares them among the planes" in refused(request(mixed))
    diverged = state | {"encoder.planar_net.bias": torch.full((128,), torch.nan)}
    assert "NaN or infinite" in refused(request(diverged))


def test_the_normalisation_of_the_checkpoint_is_used_where_none_is_given(tmp_path: Path) -> None:
    norm = {p: torch.tensor(np.array([n.mean, n.std])) for p, n in NORMALISATION.items()}
    checkpoint = checkpoint_of(reference("nugraph2", 0).state_dict(), tmp_path, norm=norm)
    card = import_checkpoint(Request(checkpoint, "nugraph2", tmp_path / "out")).card
    assert card.normalisation == NORMALISATION


@pytest.mark.parametrize("kind", ["json", "hdf5", "npz"])
def test_a_normalisation_is_read_from_each_kind_of_file(tmp_path: Path, kind: str) -> None:
    rows = {p: np.array([n.mean, n.std], np.float32) for p, n in NORMALISATION.items()}
    path = tmp_path / "norm"
    if kind == "json":
        path = norm_file(tmp_path)
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez(file, **rows)
    else:
        with h5py.File(path, "w") as file:
            for plane, row in rows.items():
                file[f"norm/{plane}"] = row
    assert read_normalisation(path) == NORMALISATION


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
        read_normalisation(path)
    assert "\n" not in str(caught.value)


def test_a_standard_deviation_of_zero_is_refused() -> None:
    rows = {plane: [[1.0] * 4, [1.0, 0.0, 1.0, 1.0]] for plane in "uvy"}
    with pytest.raises(ModelFilesError, match="must be positive"):
        normalisation_in(rows)


def test_a_golden_answer_is_computed_for_a_given_event(tmp_path: Path) -> None:
    event = random_event(np.random.default_rng(0), 60)
    write_golden(tmp_path / "event.npz", Golden(event, {}))
    out = tmp_path / "out"
    model = reference("24.7.1", 0)
    import_reference("24.7.1", model, tmp_path, out, event=tmp_path / "event.npz")
    golden = read_golden(out / "golden.npz")
    assert disagreements(Runtime.load(out).infer(event), golden.outputs) == []


def test_importing_again_replaces_the_weights_and_the_golden_answer_alike(tmp_path: Path) -> None:
    out = model_directory("24.7.1", tmp_path)
    (out / "model.py").write_text("# stays")
    before = read_golden(out / "golden.npz")
    import_reference("24.7.1", reference("24.7.1", 9), tmp_path, out)
    after = read_golden(out / "golden.npz")
    assert disagreements(before.outputs, after.outputs) != []
    assert disagreements(after.outputs, Runtime.load(out).infer(before.event)) == []
    assert names_in(out) == {"weights.safetensors", "model.json", "golden.npz", "model.py"}
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_replacement_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    out = model_directory("24.7.1", tmp_path)
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
        import_reference("24.7.1", reference("24.7.1", 9), tmp_path, out)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


def test_links_to_shared_files_are_replaced_and_not_followed(tmp_path: Path) -> None:
    shared = model_directory("nugraph2", tmp_path)
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in before:
        (linked / name).symlink_to(Path("..") / "imported" / name)
    import_reference("nugraph2", reference("nugraph2", 9), tmp_path, linked)
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == before
    assert not any(path.is_symlink() for path in linked.iterdir())
    Runtime.load(linked)


def card_content(tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "out"
    import_reference("24.7.1", reference("24.7.1", 0), tmp_path, out)
    content: dict[str, Any] = json.loads((out / "model.json").read_text())
    return content


def test_a_model_card_with_a_wrong_field_is_refused_by_its_name(tmp_path: Path) -> None:
    content = card_content(tmp_path)
    assert parse_card(content).semantic_classes == tuple("abcde")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"format": 2}, "format is 2"),
        ({"surprise": 1}, "unknown fields: \\['surprise'\\]"),
        ({"architecture": "nugraph9"}, "supported are nugraph3"),
        ({"variant": "other"}, "supported are nugraph3"),
        ({"planes": ["u", "v"]}, "planes are"),
        ({"heads": []}, "heads"),
        ({"heads": ["semantic", "taste"]}, "heads are"),
        ({"event_classes": None}, "event_classes are needed"),
        ({"hyperparameters": {"iterations": 0}}, "hyperparameters"),
        ({"position_scale": [1]}, "position_scale"),
        ({"position_scale": [1, float("inf")]}, "position_scale"),
        ({"normalisation": {}}, "normalisation"),
        ({"weights": {"file": "../w", "sha256": ""}}, "plain file name"),
        ({"weights": {}}, "weights needs file and sha256"),
        ({"demo": "yes"}, "demo is 'yes'"),
        ({"description": 1}, "description"),
        ({"accuracy": 1}, "accuracy"),
    ]
    for change, message in wrong:
        with pytest.raises(ModelFilesError, match=message):
            parse_card(content | change)
    del content["source"]
    with pytest.raises(ModelFilesError, match="missing fields: \\['source'\\]"):
        parse_card(content)
    with pytest.raises(ModelFilesError, match="object"):
        parse_card([])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ModelFilesError, match="is not JSON"):
        read_card(tmp_path / "broken.json")


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = CHECKOUT / "scripts" / "import_checkpoint.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_prints_a_report_or_one_line(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(reference("24.7.1", 0).state_dict(), tmp_path)
    norm, out = norm_file(tmp_path), tmp_path / "out"
    done = run_script(checkpoint, "--model", "nugraph3", "--norm", norm, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["card"]["variant"] == "24.7.1"
    assert (out / "golden.npz").exists(), "a launch with these weights needs a golden answer"
    failed = run_script(checkpoint, "--model", "nugraph3", "--out", out)
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
