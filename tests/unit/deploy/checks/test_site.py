"""numlkit check: what is wrong with a site's repository is said before anything is started."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from deploy.checks import site
from deploy.commands.check import main
from deploy.environment.environment import plan_environment
from deploy.host.paths import CHECKOUT
from tests.unit.deploy.site_repository import CONFIG, write_model

pytestmark = pytest.mark.usefixtures("home")
GALLERY = CHECKOUT / "gallery"
STEPS = """\
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
} }
"""
STEP = STEPS[STEPS.index("step") : STEPS.rindex("}")]
SECOND = STEP.replace('value: "x"', 'value: "z"')
FIRST = STEP.replace('value: "y"', 'value: "z"')
BACKWARDS = STEPS.replace(STEP, f"{SECOND}{FIRST}")
CIRCULAR = BACKWARDS.replace('value: "x"', 'value: "y"')
BATCHED = CONFIG + "max_batch_size: 8\n"
NAMED = CONFIG + 'parameters { key: "NUMLKIT_ENV" value { string_value: "nobodys" } }\n'
WARMED = (
    CONFIG
    + """\
model_warmup { name: "w" batch_size: 1 inputs { key: "x" value {
  data_type: TYPE_FP32 dims: 2 input_data_file: "sample"
} } }
"""
)
CALLING = CONFIG + 'parameters { key: "NUMLKIT_CALLS" value { string_value: "gone" } }\n'


def said(repository: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the problems that the command reports, by model."""
    status = main([str(repository), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (status == 0) is answer["ok"]
    found: dict[str, list[str]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["model"], [])
        if finding["level"] == "problem":
            found[finding["model"]].append(finding["detail"].replace(f"{repository}/", ""))
    return found


def test_the_gallery_is_whole(capsys):
    found = said(GALLERY, capsys)
    assert found
    assert not any(found.values()), found


NUMBERED = """sequence_batching { control_input {
  name: "RUN" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }
} }"""


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (CONFIG.replace("dims: -1", "dims: [ -1, 0 ]", 1),
         "input x has dims [-1, 0]: -1 is for any size"),
        (CONFIG.replace("dims: -1", "", 1),
         "input x has no dims: dims: [ 1 ] for a single value"),
        (CONFIG.replace(" data_type: TYPE_FP32", "", 1), "input x has no data_type"),
        (CONFIG.replace('name: "x"', "", 1), "an input has no name"),
        (CONFIG + 'input { name: "x" data_type: TYPE_FP32 dims: 1 }', "input 'x' is there twice"),
        (CONFIG + NUMBERED, "control input RUN (CONTROL_SEQUENCE_CORRID) lets a client end the "
         "server: request.correlation_id() in model.py gives the same"),
        (CONFIG + 'name: "other"', "m/config.pbtxt: names its model 'other'"),
        (CALLING, "NUMLKIT_CALLS names 'gone', which is neither in {} nor one of the kit's models"),
        (NAMED, "no environment 'nobodys': neither {}/../envs/nobodys nor one of the kit's"),
        (CONFIG.replace('backend: "python"', 'default_model_filename: "net.py"'),
         "m/config.pbtxt: names neither backend nor platform"),
        (CONFIG.replace("backend:", "platform:").replace("python", "ensamble"),
         "has platform 'ensamble', which Triton does not know: one of ensemble, onnxruntime_onnx, "
         "pytorch_libtorch, tensorflow_graphdef, tensorflow_savedmodel, tensorrt_plan"),
        (CONFIG.replace("backend:", "platform:").replace("python", "onnxruntime_onnx"),
         "version 1 has no model.onnx"),
        (CONFIG.replace("python", "tensorrt"), "version 1 has no model.plan"),
        (CONFIG.replace('name: "y"', 'name: "y" label_filename: "labels.txt"'),
         "names labels.txt, which its folder does not have"),
        (WARMED, "names warmup/sample, which its folder does not have"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_named(tmp_path, capsys, config, says):
    repository = tmp_path / "models"
    write_model(repository, "m", config=config)
    wanted = says.format(repository).replace(f"{repository}/..", str(tmp_path))
    assert wanted in said(repository, capsys)["m"]


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (CONFIG.replace("python", "onnxruntime"), ["1/model.onnx"]),
        (CONFIG.replace('backend: "python"', 'platform: "tensorflow_savedmodel"'),
         ["1/model.savedmodel/saved_model.pb"]),
        (CONFIG.replace("python", "tensorrt") + 'default_model_filename: "a.plan"\n', ["1/a.plan"]),
        (CONFIG.replace('name: "y"', 'name: "y" label_filename: "./labels.txt"'), ["labels.txt"]),
        (WARMED, ["warmup/sample"]),
        (CONFIG + 'default_model_filename: "net.py"\n', []),
        (CONFIG.replace('backend: "python"', ""), []),
    ],
)  # fmt: skip
def test_a_model_with_all_that_its_configuration_names_is_good(tmp_path, capsys, config, files):
    version = write_model(tmp_path, "m", config=config)
    (version / "net.py").write_text((version / "model.py").read_text())
    for name in files:
        path = tmp_path / "m" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert said(tmp_path, capsys) == {"m": []}


@pytest.mark.parametrize(
    "code",
    ["TritonPythonModel = type", "try:\n    class TritonPythonModel: ...\nfinally: ...",
     "from net import *"],
)  # fmt: skip
def test_code_that_triton_can_load_is_good(tmp_path, capsys, code):
    version = write_model(tmp_path, "m")
    (version / "model.py").write_text(code)
    (version / "net.py").touch()
    assert said(tmp_path, capsys) == {"m": []}


@pytest.mark.parametrize(
    ("steps", "part", "says"),
    [
        (STEPS, BATCHED, "step m: x is FP32 [-1]; x is FP32 [-1, -1]"),
        (STEPS, CONFIG.replace("FP32", "INT32", 1), "step m: x is FP32 [-1]; x is INT32 [-1]"),
        (STEPS.replace("FP32 dims: -1 }\nens", "FP32 dims: [ 2, 2 ] }\nens"), CONFIG,
         "output y is FP32 [2, 2]; the step that makes it has FP32 [-1]"),
        (STEPS.replace('key: "x" value: "x"', 'key: "z" value: "x"'), CONFIG,
         "step m has no input z"),
        (STEPS.replace('key: "x" value: "x"', 'key: "z" value: "x"'), CONFIG,
         "step m: nothing is its input x"),
        (STEPS.replace('value: "x"', 'value: "w"'), CONFIG,
         "step m: no step makes w, its input x"),
        (STEPS.replace('key: "y"', 'key: "z"'), CONFIG, "step m has no output z"),
        (STEPS.replace('value: "y"', 'value: "z"'), CONFIG, "no step makes output y"),
        (STEPS.replace('"m"', '"gone"'), CONFIG,
         "has a step 'gone', which is neither in {} nor one of the kit's models"),
        (STEPS.replace("version: -1", "version: 7"), CONFIG,
         "step m asks for version 7, which is not served: model_version: -1 is the newest"),
        (STEPS.replace(" model_version: -1", ""), CONFIG,
         "step m asks for version 0, which is not served: model_version: -1 is the newest"),
        (STEPS + "max_batch_size: 9\n", BATCHED,
         "step m takes batches of up to 8, the ensemble of up to 9"),
        (STEPS.replace(STEP, STEP + STEP), CONFIG, "tensor y is made twice"),
        (CIRCULAR, CONFIG, "no step reads input x"),
        (CIRCULAR, CONFIG, "steps wait for each other: m, m"),
        (STEPS.replace('"m"', '"e"'), CONFIG, "is a step of itself: e -> e"),
    ],
)  # fmt: skip
def test_an_ensemble_that_does_not_fit_is_named(tmp_path, capsys, steps, part, says):
    write_model(tmp_path, "m", config=part)
    write_model(tmp_path, "e", config=steps)
    found = said(tmp_path, capsys)
    assert found["m"] == []
    assert says.format(tmp_path) in found["e"]


CACHED = STEPS + "response_cache { enable: true }\n"
OF_2D = CACHED.replace("dims: -1", "dims: [ -1, -1 ]", 1)
SEQUENCE = CONFIG + "sequence_batching { }\n"


@pytest.mark.parametrize(
    ("config", "step", "says"),
    [
        (CONFIG + "response_cache { enable: true }\n", CONFIG,
         " is of a model: once it refuses a request, Triton answers that with nothing"),
        (CACHED + 'output { name: "z" data_type: TYPE_FP32 dims: -1 }\n', CONFIG,
         ": 2 outputs, of which a client gets those that another one asked for"),
        (OF_2D, CONFIG,
         ": inputs x of the same values are the same to Triton, whatever their shapes"),
        (CACHED, SEQUENCE, ": its step m answers by what came before"),
        (CACHED, CONFIG, ": nothing would tell that its step m has died"),
    ],
)  # fmt: skip
def test_a_response_cache_that_would_be_wrong_is_refused(tmp_path, capsys, config, step, says):
    write_model(tmp_path, "m", config=step)
    write_model(tmp_path, "c", config=config)
    assert said(tmp_path, capsys) == {"c": [f"c/config.pbtxt: response_cache{says}"], "m": []}


def test_ensembles_that_call_each_other_are_named(tmp_path, capsys):
    write_model(tmp_path, "m", config=STEPS.replace('"m"', '"e"'))
    write_model(tmp_path, "e", config=STEPS)
    assert said(tmp_path, capsys) == {
        "e": ["is a step of itself: e -> m -> e"],
        "m": ["is a step of itself: m -> e -> m"],
    }


@pytest.mark.parametrize(
    ("steps", "part"),
    [
        (STEPS, CONFIG),
        (STEPS.replace("version: -1", "version: 1"), CONFIG),
        (BACKWARDS, CONFIG),
        (STEPS, 'backend: "python"\n'),  # whose tensors Triton asks it for
        (STEPS + "max_batch_size: 8\n", BATCHED),
    ],
)
def test_an_ensemble_that_fits_is_good(tmp_path, capsys, steps, part):
    write_model(tmp_path, "m", config=part)
    write_model(tmp_path, "e", config=steps)
    assert said(tmp_path, capsys) == {"e": [], "m": []}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "version 1 has no model.py"),
        ("class Model: ...\n", "m/1/model.py has no class TritonPythonModel"),
        ("def (:\n", "m/1/model.py: not Python: invalid syntax (model.py, line 1)"),
    ],
)
def test_code_that_triton_cannot_start_is_named(tmp_path, capsys, code, says):
    path = write_model(tmp_path, "m") / "model.py"
    path.unlink() if code is None else path.write_text(code)
    (found,) = said(tmp_path, capsys)["m"]
    assert found.replace(f"({tmp_path}/m/1/", "(") == says


def test_imports_that_no_environment_tells_of_yet_are_said_to_be_unchecked(tmp_path, capsys):
    write_model(tmp_path, "m")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "warning  m: what it imports is not checked, since its environment is not made yet\n"
        "         try: numlkit up, or build, makes it\n"
    )


def test_a_package_that_the_environment_lacks_is_named_wherever_one_is(
    tmp_path, tmp_path_factory, capsys, monkeypatch
):
    monkeypatch.delenv("XDG_CACHE_HOME")
    here = tmp_path_factory.mktemp("here")
    (here / "nonesuch.py").touch()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(here))
    serving = plan_environment("serving").make(lambda _text: None)
    monkeypatch.setattr(site, "plan_environment", lambda _flavour: serving)
    version = write_model(tmp_path, "m")
    for folder in (version, version.parent):  # both are on Triton's path
        (folder / f"helper_{folder.name}.py").touch()
    (version / "model.py").write_text(
        "import json, numpy, nonesuch.deep\nimport helper_1, helper_m\n"
        "import triton_python_backend_utils\n"
        "from safetensors import safe_open\n"
        "class TritonPythonModel:\n    def initialize(self, args):\n        import optional\n"
    )
    assert said(tmp_path, capsys) == {
        "m": ["imports nonesuch, which the kit's environment does not have"]
    }


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"input/x": np.zeros(2, np.float32), "output/z": np.zeros(2)},
         "m/1/golden.npz: output z is not in config.pbtxt"),
        ({"input/x": np.zeros((2, 2), np.float32), "output/y": np.zeros(2, np.float32)},
         "m/1/golden.npz: input x is FP32 [2, 2]; config.pbtxt says FP32 [-1]"),
        ({"input/w": np.zeros(2, np.float32), "output/y": np.zeros(2, np.float32)},
         "m/1/golden.npz: it has no input x"),
    ],
)  # fmt: skip
def test_a_reference_output_of_other_tensors_is_named(tmp_path, capsys, arrays, says):
    np.savez(write_model(tmp_path, "m") / "golden.npz", **arrays)
    assert says in said(tmp_path, capsys)["m"]


SLASHES = """\
backend: "python"
input { name: "input/x:0" data_type: TYPE_FP32 dims: -1 }
output { name: "/head/y" data_type: TYPE_FP32 dims: -1 }
"""


@pytest.mark.parametrize("number", ["", "0/"])
def test_a_reference_output_may_have_tensors_with_slashes(tmp_path, capsys, number):
    version, array = write_model(tmp_path, "m", config=SLASHES), np.zeros(2, np.float32)
    arrays = {f"input/{number}input/x:0": array, f"output/{number}/head/y": array}
    np.savez(version / "golden.npz", **arrays)
    assert said(tmp_path, capsys) == {"m": []}


def test_a_folder_that_cannot_be_a_model_is_named_and_the_others_are_judged(tmp_path, capsys):
    for name in ("a copy", "good", "loop"):
        write_model(tmp_path, name)
    (tmp_path / "loop/1/here").symlink_to("there")
    (tmp_path / "loop/1/there").symlink_to("here")
    found = said(tmp_path, capsys)
    (loop,) = found.pop("loop")
    assert loop.startswith("loop/1/here: a link ")  # in other words from Python 3.13 on
    assert found == {"a copy": ["'a copy' is not a model name"], "good": []}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named_and_the_others_are_judged(tmp_path, capsys):
    denied = {"closed": "closed", "code": "code/1/model.py", "versions": "versions"}
    for name in (*denied, "good"):
        write_model(tmp_path, name)
    modes = {"closed": 0, "code": 0, "versions": 0o100}
    for name, path in denied.items():
        (tmp_path / path).chmod(modes[name])
    try:
        found = said(tmp_path, capsys)
    finally:
        for path in denied.values():
            (tmp_path / path).chmod(0o755)
    assert found == {
        "closed": ["closed/config.pbtxt: Permission denied"],
        "code": ["code/1/model.py: Permission denied"],
        "good": [],
        "versions": ["versions: Permission denied"],
    }


def test_a_model_that_is_not_there_is_named(tmp_path, capsys):
    write_model(tmp_path, "m")
    assert main([str(tmp_path), "--models", "w"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"problem  w: no model 'w' in {tmp_path}",
        "         try: one of: m",
    ]
