"""An ensemble of the gallery's that answers from Triton's response cache."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from deploy.client.example import example_inputs
from deploy.engines.server import living_stubs
from tests.gallery import GALLERY, ask, assert_counted, cached, counts, outcome
from tests.kit import until


@pytest.fixture(scope="module")
def served(kit):
    yield kit.up("cached", "--models-dir", str(GALLERY), "--models", "sentence_cache")
    kit.end("cached")


@pytest.fixture(scope="module")
def server(served):
    with triton.InferenceServerClient(f"127.0.0.1:{served['ports']['grpc']}") as client:
        yield client


def test_a_text_that_comes_again_is_answered_from_the_response_cache_and_a_refusal_is_not(server):
    text = {"text": np.array([[b"Is this text asked for twice?"]], np.object_)}
    before, found = {"sentence_bert": counts(server, "sentence_bert")}, cached(server)
    first, again, direct = (
        ask(server, model, text).as_numpy("vector")
        for model in ("sentence_cache", "sentence_cache", "sentence_bert")
    )
    assert_counted(server, before, {"sentence_bert": 2})
    assert np.subtract(cached(server), found).tolist() == [1, 1]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, direct, atol=1e-6)
    for _ in range(2):
        with pytest.raises(triton.InferenceServerException, match="text is empty"):
            ask(server, "sentence_cache", {"text": np.array([[b""]], np.object_)})
    assert np.subtract(cached(server), found).tolist() == [1, 1]


def test_a_dead_model_behind_the_cache_is_seen_healed_and_nothing_it_failed_at_is_kept(
    kit, served, server
):
    def smoke() -> dict[str, Any]:
        return kit.json("smoke", "--name", "cached")

    kept = example_inputs(GALLERY / "sentence_cache")
    text = {"text": np.array([[b"Nobody is there to answer this."]], np.object_)}
    supervisor = psutil.Process(served["supervisor"]["pid"])
    stubs = living_stubs(psutil.Process(served["server"]["pid"]))
    (stub,) = (stub for stub in stubs if stub.model == "sentence_bert")
    supervisor.suspend()
    try:
        os.kill(stub.process.pid, signal.SIGKILL)
        with pytest.raises(triton.InferenceServerException, match="is not healthy"):
            ask(server, "sentence_cache", text)
        assert ask(server, "sentence_cache", kept).as_numpy("vector").shape == (1, 384)
        assert not smoke()["ok"]
    finally:
        supervisor.resume()

    def replaced() -> bool:  # or, where Triton waits for the dead one, the whole server
        now = kit.noted("cached")
        return now["phase"] == "ready" and now["heals"] + now["restarts"] > 0

    until(replaced, "the healing")
    assert smoke()["ok"]
    answer = outcome(served, "sentence_cache", text)
    assert isinstance(answer, dict), answer
    assert answer["vector"].shape == (1, 384)
