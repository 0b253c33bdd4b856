"""Model files are replaced all together or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_files import (
    FILES,
    checkpoint_of,
    model24,
    names_in,
    request_for,
)
from numl_serving.event import Event
from numl_serving.importer import Request, import_checkpoint
from numl_serving.runtime import Runtime

from numl_formats.golden import disagreements, read_golden


def clone(request: Request, seed: int) -> Request:
    """Return a request for the same network with other weights, into the same folder."""
    folder = request.out.parent / f"seed{seed}"
    folder.mkdir()
    state = {name: value + 0.01 * seed for name, value in model24("24.7.1").state_dict().items()}
    return replace(request, checkpoint=checkpoint_of(state, folder))


def test_importing_again_replaces_the_weights_and_the_golden_answer_alike(tmp_path):
    request = request_for("24.7.1", tmp_path)
    import_checkpoint(request)
    out = request.out
    (out / "model.py").write_text("# stays")
    before = read_golden(out / "golden.npz")
    import_checkpoint(clone(request, 1))
    after = read_golden(out / "golden.npz")
    assert disagreements(before.outputs, after.outputs) != []
    assert (
        disagreements(after.outputs, Runtime.load(out).infer(Event.from_tensors(before.inputs)))
        == []
    )
    assert names_in(out) == {*FILES, "model.py"}
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_replacement_leaves_the_old_files(tmp_path, monkeypatch, failing, error):
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


def test_links_to_shared_files_are_replaced_and_not_followed(tmp_path):
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
