"""numlkit add: a copy of a model of the gallery, under another name, that is as whole."""

import json

import pytest

from deploy.commands.add import GALLERY, main
from deploy.commands.check import main as check
from deploy.deployment.deployment import find_site_models
from deploy.host.paths import CHECKOUT
from deploy.triton.config import config_of
from deploy.triton.site import called_by

ONNX = CHECKOUT / "tests" / "integration" / "data" / "hits.onnx"


def test_a_copy_has_its_own_name_and_is_whole(tmp_path, capsys):
    assert main(["mine", "--like", "gat", "--into", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "models": [f"{tmp_path}/mine"]}
    for path in (p for p in (GALLERY / "gat").rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            assert (tmp_path / "mine" / path.relative_to(GALLERY / "gat")).read_bytes() == (
                path.read_bytes()
            )
    assert check([str(tmp_path)]) == 0


@pytest.mark.parametrize("entry", find_site_models(GALLERY))
def test_what_a_copy_calls_is_copied_with_it(tmp_path, entry):
    assert main(["mine", "--like", entry, "--into", str(tmp_path), "--quiet"]) == 0
    calls = called_by(config_of(GALLERY / entry))
    renamed = tuple(f"mine_{call.removeprefix(f'{entry}_')}" for call in calls)
    assert called_by(config_of(tmp_path / "mine")) == renamed
    assert set(find_site_models(tmp_path)) == {"mine", *renamed}
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
    code = "".join(path.read_text() for path in tmp_path.glob("mine/*/model.py"))
    assert not [call for call in calls if f'"{call}"' in code]
    assert check([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["mine", "--like", "nonesuch"], 2, "the gallery has no 'nonesuch'"),
        (["a/b", "--like", "gat"], 2, "'a/b' is not a model name"),
        (["there", "--like", "gat"], 1, "there is there already"),
        (["mine", "--like", "gat", "--weights", "w"], 2, "--weights and --example are for --from"),
        (["mine", "--from", "m.h5"], 2, "--from m.h5: neither ONNX, torch.export nor a class"),
        (["mine", "--from", "gone.onnx"], 2, "--from gone.onnx: no such file"),
        (["mine", "--from", "gone:Net"], 2, "--from gone.py: no such file"),
        (["mine", "--from", f"{__file__}:Net"], 2, "a class needs --weights FILE"),
        (["there", "--from", str(ONNX)], 1, "there is there already"),
    ],
)
def test_what_cannot_be_added_is_said_and_nothing_is_written(tmp_path, capsys, words, status, says):
    (tmp_path / "there").mkdir()
    assert main([*words, "--into", str(tmp_path)]) == status
    assert says in capsys.readouterr().err.splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
