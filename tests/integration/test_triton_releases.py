"""Other releases of Triton without a container, taken from an image like NVIDIA's.

A shorter conformance suite: the contract, bad requests, healing, the end. In full:
``python -m tests.releases 24.05 3.10 DIR``, then ``pytest tests/conformance --triton`` that folder.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from deploy.engines.server import living_stubs
from deploy.environment.interpreter import find_interpreter
from deploy.host.paths import CHECKOUT
from deploy.triton.golden import read_golden
from tests.conformance.test_wire import HOSTILE, ask, check_metadata, read_event, spoiled
from tests.inputs import EVENTS, inputs_of
from tests.integration import test_fuzzing as fuzzing
from tests.kit import until
from tests.releases import SERVERS, image_layers, in_cache, lay_out, write_oci

MODELS = ("nugraph2", "nugraph3")


@pytest.mark.parametrize(("release", "python"), [("24.03", "3.10"), ("24.09", "3.12")])
def test_a_release_from_an_image_keeps_the_contract_whatever_is_sent_and_is_healed(
    kit, tmp_path, release, python
):
    if find_interpreter([python]) is None:
        pytest.skip(f"its stub is for Python {python}, which is not here")
    image = write_oci(tmp_path / "image", image_layers(lay_out(release, python, tmp_path)), release)
    name = f"triton-{release}"
    with in_cache(str(image)):
        answer = kit.up(name, "--triton", str(image), "--models", ",".join(MODELS))
        log = Path(answer["log"]).read_text()
        assert f"server_version                   | {SERVERS[release]}" in log
        server = psutil.Process(answer["server"]["pid"])
        stubs = {stub.process.pid for stub in living_stubs(server)}
        for pid in stubs:
            assert f"libpython{python}" in Path(f"/proc/{pid}/maps").read_text()
        keeps_the_contract(answer["ports"])
        refuses_what_is_bad(answer["ports"], psutil.Process(max(stubs)))
        assert {stub.process.pid for stub in living_stubs(server)} == stubs
        os.kill(max(stubs), signal.SIGKILL)
        until(lambda: int(kit.noted(name)["heals"]) > 0, "healing")
        status = kit.json("status", "--name", name)
        assert status["ok"], status
        assert status["state"]["server"] == answer["server"], "the server was not restarted"
        assert kit.down(name)["status"] == 0
        assert kit.leftovers(name) == []


def keeps_the_contract(ports):
    event = read_event(EVENTS)
    with (
        http.InferenceServerClient(f"127.0.0.1:{ports['http']}") as over_http,
        grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc']}") as over_grpc,
    ):
        for model in MODELS:
            check_metadata(over_http, model)
            answer = ask(over_http, http, model, event)
            other = ask(over_grpc, grpc, model, event)
            for output, array in answer.items():
                assert np.isfinite(array).all()
                np.testing.assert_allclose(other[output], array, rtol=1e-5, atol=1e-6)


def refuses_what_is_bad(ports, stub):
    """Send a request of each bad kind; the model process lives, and answers right afterwards."""
    golden = read_golden(CHECKOUT / "model_repository" / fuzzing.MODEL / "1" / "golden.npz")
    server = fuzzing.Server(ports, stub, golden)
    event = read_event(EVENTS)
    with server.grpc() as client:
        for case, (tensor, _) in HOSTILE.items():
            with pytest.raises(InferenceServerException, match=tensor.split("_table_")[1]):
                ask(client, grpc, fuzzing.MODEL, spoiled(event, case))
        for beyond in (2**62, -(2**62), -(2**63)):
            columns = fuzzing.event(np.random.default_rng(0), 5, 0, "any", "valid", "line")
            inputs = inputs_of(grpc, columns)
            inputs[0].set_shape([5 + beyond])
            with pytest.raises(InferenceServerException):
                client.infer(fuzzing.MODEL, inputs, client_timeout=fuzzing.ANSWER_S)
    for seed, damage in enumerate(sorted(set(fuzzing.DAMAGES)) * 3):
        rng = np.random.default_rng(seed)
        columns = fuzzing.event(rng, 40, 40, "any", "any", "bits")
        answer = server.ask(fuzzing.damaged(rng, columns, damage))
        assert isinstance(answer, dict) or "not healthy" not in answer
    server.check()
    ask_again = server.ask(fuzzing.request(dict(golden.inputs)))
    assert isinstance(ask_again, dict)
    assert fuzzing.difference(golden, ask_again) is None
