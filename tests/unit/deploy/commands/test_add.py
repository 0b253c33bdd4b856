"""numlkit add: a copy of a model of the gallery, under another name, that is as whole."""

import json
import runpy
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from deploy.commands.add import GALLERY, main
from deploy.commands.check import main as check
from deploy.deployment.deployment import find_site_models
from deploy.engines import ported
from deploy.host.files import new_folder
from deploy.host.paths import CHECKOUT
from deploy.triton.config import config_of
from deploy.triton.site import called_by
from tests.programs import write_program

ONNX = CHECKOUT / "tests" / "integration" / "data" / "hits.onnx"
WRITE = "import numpy as np; np.savez('golden.npz', **{'input/x': [1], 'output/y': [1]})"
OF_CLASS = ("--weights", "net.pt", "--example", "example.npz", "--from")


@pytest.fixture
def typed_in(tmp_path_factory, monkeypatch):
    """The folder in which the command is typed."""
    folder = tmp_path_factory.mktemp("typed")
    for name in ("net.pt", "example.npz"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    return folder


def run_instead(monkeypatch, folder, code):
    """Have the model's environment run this instead of the trial."""
    (folder / "code").write_text(code)
    python = write_program(folder / "python", f'exec {sys.executable} -c "$(cat {folder}/code)"')
    made = SimpleNamespace(python=python, make=lambda _say: None)
    monkeypatch.setattr(ported, "plan_environment", lambda *_, **__: made)


def test_a_copy_has_its_own_name_and_is_whole(tmp_path, capsys):
    assert main(["mine", "--like", "gat", "--into", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "models": [f"{tmp_path}/mine"]}
    for path in (p for p in (GALLERY / "gat").rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            assert (tmp_path / "mine" / path.relative_to(GALLERY / "gat")).read_bytes() == (
                path.read_bytes()
            )
    assert check([str(tmp_path)]) == 0


def test_the_command_that_runs_it_can_be_pasted(typed_in, capsys):
    assert main(["mine", "--like", "gat", "--into", "my models"]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown == "run it: numlkit up --models-dir 'my models' --models mine"


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
        (["mine", *OF_CLASS, "model.py:Net"], 2, "model.py cannot be served beside model.py"),
        (["mine", *OF_CLASS, "model:Net"], 2, "model.py cannot be served beside model.py"),
        (["mine", *OF_CLASS, "numpy.py:Net"], 2, "numpy.py cannot be served beside model.py"),
        (["mine", *OF_CLASS, "queue.py:Net"], 2, "queue.py cannot be served beside model.py"),
    ],
)
def test_what_cannot_be_added_is_said_and_nothing_is_written(
    typed_in, tmp_path, capsys, words, status, says
):
    (tmp_path / "there").mkdir()
    for name in ("model.py", "numpy.py", "queue.py"):
        (typed_in / name).touch()
    assert main([*words, "--into", str(tmp_path)]) == status
    assert says in capsys.readouterr().err.splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("origin", [("--like", "gat"), ("--from", str(ONNX))])
def test_what_another_add_is_making_is_left_to_it(typed_in, tmp_path, monkeypatch, capsys, origin):
    run_instead(monkeypatch, typed_in, "raise SystemExit(1)")
    with new_folder(tmp_path / "mine") as others:
        assert main(["mine", *origin, "--into", str(tmp_path)]) == 1
        assert others.is_dir()
    assert f"another command is making {tmp_path}/mine" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_model_that_came_while_it_was_made_stays(typed_in, tmp_path, monkeypatch, capsys):
    (typed_in / "net.py").touch()
    theirs, tensors = tmp_path / "mine", '{"input": [], "output": []}'
    come = f"import os; os.makedirs('{theirs}/1')"
    run_instead(monkeypatch, typed_in, f"{WRITE}; {come}; print('{tensors}')")
    assert main(["mine", *OF_CLASS, "net:Net", "--into", str(tmp_path)]) == 1
    assert f"{theirs} is there already" in capsys.readouterr().err
    assert [path.name for path in theirs.iterdir()] == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_trial_run_sees_nothing_of_the_folder_in_which_add_was_typed(
    typed_in, tmp_path, capsys, monkeypatch
):
    for name in ("net.py", "helper.py"):
        (typed_in / name).touch()
    run_instead(monkeypatch, typed_in, "import helper")
    assert main(["mine", *OF_CLASS, "net:Net", "--into", str(tmp_path / "models")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("net.py cannot be served: ModuleNotFoundError: No module named 'helper'")
    assert not (tmp_path / "models" / "mine").exists()


def test_a_model_may_call_its_input_as_numpy_calls_an_argument(typed_in, tmp_path, monkeypatch):
    wrote = """
import json
from pathlib import Path
import numpy as np
from numl_formats.golden import GoldenEvent, write_golden
x = {"file": np.ones(2, np.float32), "input/x:0": np.ones(1, np.int64)}
write_golden(Path("golden.npz"), GoldenEvent(x, {"y": np.ones(1)}))
print(json.dumps({"input": [], "output": []}))
"""
    run_instead(monkeypatch, typed_in, wrote)
    assert main(["mine", "--from", str(ONNX), "--into", str(tmp_path), "--quiet"]) == 0
    with np.load(tmp_path / "mine" / "example.npz") as arrays:
        assert sorted(arrays.files) == ["file", "input/x:0"]
    made = runpy.run_path(str(tmp_path / "mine" / "client.py"))["inputs"]()
    assert made["file"].tolist() == [1, 1]


def test_a_model_may_print_where_the_trial_run_prints_its_tensors(typed_in, tmp_path, monkeypatch):
    (typed_in / "net.py").touch()
    tensors = '{"input": [{"name": "x", "datatype": "FP32", "dims": [1]}], "output": []}'
    run_instead(monkeypatch, typed_in, f"{WRITE}; print(1); print('{tensors}'); print(2)")
    assert main(["mine", *OF_CLASS, "net:Net", "--into", str(tmp_path)]) == 0
    assert [tensor.name for tensor in config_of(tmp_path / "mine").input] == ["x"]
