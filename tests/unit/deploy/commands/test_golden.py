"""``golden`` with a model that is played; tests/integration asks a real Triton."""

from types import SimpleNamespace

import numpy as np
import pytest

from deploy.client.probe import ask_golden
from deploy.client.transport import ServedModel
from deploy.commands import golden
from deploy.triton.golden import read_golden
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
def served(tmp_path, monkeypatch, capsys):
    """Have a deployment serve ``m``; returns what asks it for ``outputs``, and its folder."""
    write_model(tmp_path, "m")
    (tmp_path / "m" / "client.py").write_text(CLIENT)
    state = SimpleNamespace(
        name="numl", models=("m",), tls=None, url=lambda _protocol: "http://127.0.0.1:1"
    )
    plan = SimpleNamespace(deployment=SimpleNamespace(models_dir=tmp_path))
    folder = SimpleNamespace(require_state=lambda: state, plan=lambda: plan)
    monkeypatch.setattr(golden, "DeploymentFolder", lambda _name: folder)

    def ask(outputs):
        monkeypatch.setattr(golden, "TritonTransport", lambda *_, **__: Played(outputs))
        status = golden.main(["m"])
        return status, capsys.readouterr().err.splitlines()

    return ask, tmp_path / "m"


def test_tensors_may_have_names_with_slashes(served):
    ask, folder = served
    outputs = {"/head/Relu_output_0": np.ones(2, np.float32)}
    assert ask(outputs) == (0, [])
    written = read_golden(folder / "1" / "golden.npz")
    assert ask_golden(Played(outputs), "m", written) is None
    other = {"/head/Relu_output_0": np.zeros(2, np.float32)}
    assert "/head/Relu_output_0 is off by 1" in ask_golden(Played(other), "m", written)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (np.array([b"a\0"], object), "golden.npz cannot hold output y: a text in it ends with"),
        (np.array([np.nan]), "model m: output y is not finite; nothing can be compared with that"),
        (np.array([-np.inf]), "model m: output y is not finite; nothing can be compared with"),
    ],
)
def test_an_answer_that_is_no_reference_is_refused_in_one_line(served, output, says):
    ask, folder = served
    status, said = ask({"y": output})
    assert status == 1
    assert said[0].startswith(f"error: {says}")
    assert [line[:6] for line in said[1:]] == ["  try:"]
    assert not (folder / "1" / "golden.npz").exists()


def test_it_is_of_the_version_that_is_served(served):
    ask, folder = served
    (folder / "2").mkdir()
    policy = "version_policy { specific { versions: 1 } }\n"
    (folder / "config.pbtxt").write_text(CONFIG + policy)
    assert ask({"y": np.ones(1)}) == (0, [])
    assert (folder / "1" / "golden.npz").exists()
    assert not any((folder / "2").iterdir())
