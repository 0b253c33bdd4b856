"""Requests that wait join into one batch, up to a number and a time: a real Triton.

There is no GPU here: the models say that they are on one, and their runtime is played, in numpy.
All else is what serves on a GPU.
"""

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from numl_formats.contract import INPUTS
from tests.inputs import inputs_of, zeros
from tests.kit import SOON_S, until

MODEL = """
import time
from types import SimpleNamespace

import numpy as np
from numl_serving import triton
from numl_serving.answer import BatchResult
from numl_serving.errors import DeviceLostError
from numl_serving.event import UVY, Tensor
from numl_serving.triton import TritonPythonModel


class Played:
    # Answers each hit with its own id, after {seconds} s; hit -1 is the end of the GPU.
    card = SimpleNamespace(
        schema=UVY, outputs=(Tensor("x_filter_u", np.dtype(np.float32), (-1,)),)
    )

    def infer(self, event):
        pass

    def infer_batch(self, events):
        time.sleep({seconds})
        ids = [event.hit("hit_id") for event in events]
        lost = any((each == -1).any() for each in ids)
        error = DeviceLostError("cuda:0 cannot be used any more")
        outputs = [error if lost else {{"x_filter_u": each.astype(np.float32)}} for each in ids]
        return BatchResult(outputs, 1, 0.0, {seconds})


triton.Runtime = SimpleNamespace(load=lambda *given, **named: Played())
triton.choose_device = lambda kind, device_id: "cuda:0"
"""
EVENTS, WAITING = 4, 5
CONFIG = """
backend: "python"
max_batch_size: 0
output {{ name: "x_filter_u" data_type: TYPE_FP32 dims: -1 }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "batch_max_events" value {{ string_value: "{events}" }} }}
parameters {{ key: "batch_max_wait_ms" value {{ string_value: "100" }} }}
{more}
"""
LIMITED = 'parameters {{ key: "{name}" value {{ string_value: "{value:g}" }} }}'


def tensors(first_id: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return an event of three hits with consecutive ids."""
    return zeros(3) | {"hit_table_hit_id": np.arange(first_id, first_id + 3, dtype=np.int32)}


def write_model(folder: Path, *, seconds: float, more: str = "") -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL.format(seconds=seconds))
    inputs = [
        f'input {{ name: "{name}" data_type: TYPE_{kind} dims: -1 }}'
        for name, kind in INPUTS.items()
    ]
    text = CONFIG.format(events=EVENTS, more="\n".join([more, *inputs]))
    (folder / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def server(kit, tmp_path_factory):
    repository = tmp_path_factory.mktemp("batched")
    write_model(repository / "joining", seconds=0.1)
    few = LIMITED.format(name="most_waiting", value=WAITING)
    write_model(repository / "limited", seconds=0.5, more=few)
    write_model(
        repository / "impatient", seconds=0.5, more=LIMITED.format(name="longest_wait_s", value=0.6)
    )
    write_model(repository / "mortal", seconds=0.5)
    models = ["--models-dir", str(repository), "--models", "joining,limited,impatient,mortal"]
    yield kit.up("batched", *models, "--instances", "1")
    kit.end("batched")


def ask(
    server: dict[str, Any], model: str, first_id: int, others: Barrier | None = None
) -> list[float] | str:
    """Return the ids that were answered, or the error's message; wait for others before."""
    inputs = inputs_of(grpc, tensors(first_id))
    with grpc.InferenceServerClient(f"127.0.0.1:{server['ports']['grpc']}") as client:
        if others is not None:
            client.is_server_live()  # to connect takes longer than a batch waits
            others.wait(SOON_S)
        try:
            answer = client.infer(model, inputs, client_timeout=SOON_S)
        except InferenceServerException as error:
            return str(error.message())
    ids: list[float] = answer.as_numpy("x_filter_u").tolist()
    return ids


def together(server: dict[str, Any], model: str, first_ids: list[int]) -> list[list[float] | str]:
    others = Barrier(len(first_ids))
    with ThreadPoolExecutor(len(first_ids)) as clients:
        return list(clients.map(lambda first: ask(server, model, first, others), first_ids))


def ids(first_id: int) -> list[float]:
    return [first_id, first_id + 1, first_id + 2]


def counted(server: dict[str, Any], model: str) -> dict[str, float]:
    """Return the model's own counters."""
    address = f"http://127.0.0.1:{server['ports']['metrics']}/metrics"
    with urllib.request.urlopen(address, timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {s.name: s.value for f in families for s in f.samples if s.labels.get("model") == model}


def test_each_of_the_requests_that_join_gets_its_own_answer(server):
    first_ids = list(range(0, 2000, 100))
    assert together(server, "joining", first_ids) == [ids(first) for first in first_ids]
    until(
        lambda: counted(server, "joining").get("nugraph_events_total") == 20,
        "all events are counted",
    )
    assert counted(server, "joining")["nugraph_batches_total"] <= 10
    metrics = counted(server, "joining")
    assert metrics["nugraph_queue_duration_us_total"] > 20 * 10_000
    assert metrics["nugraph_pending_request_count"] == 0


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        ("limited", "Exceeds maximum queue size: try again in 1 s"),
        ("impatient", "Request timeout expired: try again in 0.6 s"),
    ],
)
def test_what_exceeds_a_limit_is_refused_and_told_when_to_try_again(server, model, refusal):
    first_ids = list(range(0, 4000, 100))
    started = time.monotonic()
    answers = together(server, model, first_ids)
    refused = [answer for answer in answers if isinstance(answer, str)]
    answered = [
        answer for answer, first in zip(answers, first_ids, strict=True) if answer == ids(first)
    ]
    assert set(refused) == {refusal}
    assert len(refused) + len(answered) == len(first_ids)
    assert len(refused) >= len(first_ids) // 4
    if model == "limited":  # more come while clients start
        runs = int((time.monotonic() - started) / 0.5) + 1
        assert len(answered) <= WAITING + EVENTS * (runs + 1)


def test_all_that_an_instance_holds_is_answered_when_its_gpu_is_lost(server):
    answers = together(server, "mortal", [100, -1, 300, 400, 500, 600])
    assert len(answers) == 6
    for answer, first in zip(answers, [100, -1, 300, 400, 500, 600], strict=True):
        assert isinstance(answer, str) or answer == ids(first)
    assert any("cuda:0 cannot be used any more" in str(answer) for answer in answers)
    until(lambda: ask(server, "mortal", 700) == ids(700), "another process answers")
