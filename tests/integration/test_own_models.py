"""Models of a site in one server: broken ones beside good ones; ONNX, decoupled, sequences."""

import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http as http

from deploy.client.probe import Probe, smoke
from deploy.triton.golden import read_golden
from tests.environments import ignore, numpy_1
from tests.unit.deploy.engines.site import ENSEMBLE
from tests.unit.deploy.site_repository import CONFIG, environment_parameter, write_model

BEGIN = """
import numpy as np
import triton_python_backend_utils as pb

def x(request):
    return pb.get_input_tensor_by_name(request, "x").as_numpy()

def answer(y):
    return pb.InferenceResponse([pb.Tensor("y", y)])
"""
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(2 * x(request)) for request in requests]
"""
# What it has started outlives it, unless it is ended.
STARTS = """
import subprocess
class TritonPythonModel:
    def initialize(self, args):
        subprocess.Popen(["sleep", "{}"])
    def execute(self, requests):
        return [answer(x(request)) for request in requests]
"""
# One response for each element.
EACH = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in x(request):
                sender.send(answer(value[None]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# The sum of all that a sequence has sent.
TOTAL = """
class TritonPythonModel:
    total = 0
    def execute(self, requests):
        answers = []
        for request in requests:
            start = pb.get_input_tensor_by_name(request, "START").as_numpy()[0]
            self.total = x(request) + (0 if start else self.total)
            answers.append(answer(self.total))
        return answers
"""
ONE = CONFIG.replace("count: 2", "count: 1")
NAMELESS = ONE.replace('backend: "python"\n', "")
DECOUPLED = ONE + "model_transaction_policy { decoupled: true }\n"
SEQUENCE = (
    ONE
    + """
sequence_batching { control_input {
  name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
} }
"""
)
X = np.array([1, 2], np.float32)
# Its weights lie beside it in hits.onnx.data, as torch.onnx.export writes them.
ONNX = Path(__file__).parent / "data" / "hits.onnx"
GOOD, BROKEN = ("double", "each", "total", "hits"), ("m", "wrong", "pair", "unreadable", "lost")


@pytest.fixture(scope="module")
def repository(kit, tmp_path_factory):
    """The good models, and others that each fail in one way."""
    folder = tmp_path_factory.mktemp("models")
    environment = str(numpy_1().make(ignore).folder)
    for name, code, config in (
        ("double", DOUBLE, NAMELESS), ("each", EACH, DECOUPLED), ("total", TOTAL, SEQUENCE),
        ("m", "import nothing", ONE), ("wrong", DOUBLE, ONE),
    ):  # fmt: skip
        version = write_model(folder, name, environment=environment, config=config)
        (version / "model.py").write_text(BEGIN + code)
    np.savez(folder / "wrong/1/golden.npz", **{"input/x": X, "output/y": 3 * X})
    write_model(folder, "pair", config=ENSEMBLE)
    write_model(folder, "unreadable", config="backend: python")
    write_model(folder, "lost", config=CONFIG + environment_parameter("/nowhere"))
    added = kit.json("add", "hits", "--from", str(ONNX), "--into", str(folder))
    assert added["status"] == 0, added
    return folder


@pytest.fixture(scope="module")
def served(kit, repository):
    yield kit.up("own", *flags(repository))
    kit.down("own")


def flags(repository: Path) -> tuple[str, ...]:
    models = ",".join((*GOOD, *BROKEN))
    return ("--models-dir", str(repository), "--models", models, "--keep-going")


def test_what_works_is_served_and_why_the_rest_is_not_is_told(kit, repository, served):
    assert served["models"] == list(GOOD)
    said = {model: why["cause"] for model, why in served["broken"].items()}
    assert said.keys() == {*BROKEN}
    assert "lacks the Python package nothing" in said["m"]
    assert "wrong: output y is off by" in said["wrong"]
    assert "model pair" in said["pair"]
    assert said["unreadable"].startswith(f"model unreadable: {repository}/unreadable/config.pbtxt")
    assert "'/nowhere' does not exist" in said["lost"]
    status = kit.json("status", "--name", "own")
    assert (status["status"], status["problems"]) == (1, [])
    assert status["state"]["broken"] == served["broken"]
    assert kit.up("own", *flags(repository))["server"] == served["server"]


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("each", '{"x": X}', {"0/y": [1], "1/y": [2]}),
        ("total", '[{"x": X}, {"x": X}]', {"0/y": [1, 2], "1/y": [2, 4]}),
    ],
    ids=["decoupled", "sequence"],
)
def test_a_reference_output_has_all_responses_and_all_requests(
    kit, repository, served, model, inputs, outputs
):
    client = (
        f"import numpy as np\nX = np.array([1, 2], np.float32)\ndef inputs(): return {inputs}\n"
    )
    (repository / model / "client.py").write_text(client)
    answer = kit.json("golden", model, "--name", "own")
    assert answer["status"] == 0, answer
    golden = read_golden(repository / model / "1" / "golden.npz")
    assert {name: array.tolist() for name, array in golden.outputs.items()} == outputs
    ports = served["ports"]
    urls = (f"{p}://127.0.0.1:{ports[p]}" for p in ("http", "grpc"))
    probe = Probe(next(urls), grpc=next(urls))
    assert smoke(probe, model, golden).words.startswith("correct, ")
    golden.outputs["1/y"][0] = 7
    assert "output 1/y is off by" in smoke(probe, model, golden).error


def test_a_model_of_onnx_takes_any_number_of_hits(served):
    with http.InferenceServerClient(f"127.0.0.1:{served['ports']['http']}") as client:
        for count in (0, 1, 3):
            hits = http.InferInput("hits", [count, 2], "FP32")
            hits.set_data_from_numpy(np.ones((count, 2), np.float32))
            answer = client.infer("hits", [hits])
            assert answer.as_numpy("scores").tolist() == [[1, 3, 2]] * count
            assert answer.as_numpy("label").tolist() == [1] * count


def test_what_a_model_has_started_ends_with_the_server(kit, tmp_path):
    seconds = str(3000 + os.getpid() / 1e7)
    version = write_model(tmp_path, "m", environment=str(numpy_1().make(ignore).folder), config=ONE)
    (version / "model.py").write_text(BEGIN + STARTS.format(seconds))

    def living() -> list[psutil.Process]:
        words = ["sleep", seconds]
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == words]

    kit.up("starts", "--models-dir", str(tmp_path), "--models", "m")
    assert living()
    kit.down("starts")
    assert not living()
