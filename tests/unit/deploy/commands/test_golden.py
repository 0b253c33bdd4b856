"""``golden`` with a model that is played; tests/integration asks a real Triton."""

import shutil

import numpy as np
import pytest

from deploy.client.probe import ask_golden
from deploy.client.transport import ServedModel
from deploy.commands import golden
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import DeploymentFolder
from deploy.triton.golden import read_golden
from tests.plans import make_plan
from tests.unit.deploy.deployment.test_state import make_state
from tests.unit.deploy.site_repository import CONFIG, write_model

CLIENT = "import numpy as np\ndef inputs(): return {'input/x:0': np.ones(1, np.float32)}\n"


class Played:
    """A connection to a server whose model answers ``outputs``, whatever it is asked."""

    def __init__(self, outputs):
        self.outputs = outputs

    def describe(self, model):
        return ServedModel(model, {"input/x:0": "FP32"}, tuple(self.outputs), {})

    def infer(self, served, inputs):
        assert {*served.inputs} == {*inputs} == {"input/x:0"}
        return {name: self.outputs[name] for name in served.outputs}

    def close(self):
        pass


@pytest.fixture
def served(request, home, monkeypatch, capsys):
    """Have a deployment serve ``m``; returns what asks it for ``outputs``, and the original."""
    baked = getattr(request, "param", None) == "in an image"
    repository = home / "cache/numlkit/baked/1234/models" if baked else home / "models"
    write_model(repository, "m")
    (repository / "m" / "client.py").write_text(CLIENT)
    folder = DeploymentFolder("numl")
    shutil.copytree(repository, folder.repository)
    folder.write_state(make_state("numl", models=("m",)))
    deployment = Deployment(models_dir=repository, models=("m",))
    folder.write_plan(make_plan(folder.path, deployment=deployment))

    def ask(outputs, *flags):
        monkeypatch.setattr(golden, "TritonTransport", lambda *_, **__: Played(outputs))
        status = golden.main(["m", *flags])
        return status, capsys.readouterr().err.splitlines()

    return ask, repository / "m"


def test_tensors_may_have_names_with_slashes(served):
    ask, folder = served
    outputs = {"/head/Relu_output_0": np.ones(2, np.float32)}
    assert ask(outputs) == (0, [])
    written = read_golden(folder / "1" / "golden.npz")
    assert ask_golden(Played(outputs), "m", written) is None
    other = {"/head/Relu_output_0": np.zeros(2, np.float32)}
    assert "/head/Relu_output_0 is off by 1" in ask_golden(Played(other), "m", written)


GIVEN, IS_ONE = "'input/x:0': np.ones(1, np.float32)", np.ones(1)
ASKED = "{}/client.py: inputs() returns "


@pytest.mark.parametrize(("given", "output", "says"), [
    (GIVEN, np.array([b"a\0"], object),
     "golden.npz cannot hold output y: a text in it ends with a zero byte, which numpy drops"),
    (GIVEN, np.array([np.nan]),
     "model m: output y is not finite; nothing can be compared with that"),
    (GIVEN, np.array([-np.inf]),
     "model m: output y is not finite; nothing can be compared with that"),
    # These the server would refuse at its next start.
    ("'input/x:0': np.ones(1)", IS_ONE, f"{ASKED}input/x:0 as float64; model m takes FP32"),
    ("'input/x:0': ['one']", IS_ONE, f"{ASKED}input/x:0 as <U3; model m takes FP32"),
    (f"{GIVEN}, 'z': [1]", IS_ONE, f"{ASKED}z as int64; model m has no such input"),
], ids=["zero byte", "no number", "infinite", "other type", "text", "unknown input"])  # fmt: skip
def test_what_is_no_reference_is_refused_with_what_to_do_about_it(served, given, output, says):
    ask, folder = served
    (folder / "client.py").write_text(f"import numpy as np\ndef inputs(): return {{{given}}}\n")
    status, said = ask({"y": output})
    assert (status, said[0]) == (1, f"error: {says.format(folder)}")
    assert [line[:6] for line in said[1:]] == ["  try:"]
    assert not (folder / "1" / "golden.npz").exists()


def test_golden_is_written_to_the_version_that_answered(served):
    ask, folder = served
    # Both since the server was started.
    (folder / "2").mkdir()
    (folder / "config.pbtxt").write_text(CONFIG + "model_transaction_policy { decoupled: true }\n")
    assert ask({"y": np.ones(1)}) == (0, [])
    assert (folder / "1" / "golden.npz").exists()
    assert not any((folder / "2").iterdir())
    shutil.rmtree(folder / "1")
    assert ask({"y": np.ones(1)}) == (
        1,
        [
            f"error: version 1 of model m, which is served, is gone from {folder}",
            "  try: numlkit down and up serve the version that is there",
        ],
    )
    assert not any((folder / "2").iterdir())


@pytest.mark.parametrize("served", ["in an image"], indirect=True)
def test_golden_of_a_model_in_an_image_is_shown_and_not_written(served):
    ask, folder = served
    status, said = ask({"y": np.ones(1)})
    assert (status, said) == (
        1,
        [
            "error: model m is in an image, which no reference output can be written to",
            "  try: write it in the repository that it is built from, served with numlkit up "
            "--models-dir, and build the image again; --dry-run shows the answer",
        ],
    )
    assert ask({"y": np.ones(1)}, "--dry-run") == (0, [])
    assert not (folder / "1" / "golden.npz").exists()
