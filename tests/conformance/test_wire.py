"""The wire contract, as clients see it that know nothing of this project."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from deploy.events.files import EventFile
from deploy.host.paths import CHECKOUT
from tests.inputs import EVENTS, inputs_of
from tests.kit import SMALL

INPUTS = {
    "hit_table_hit_id": "INT32",
    "hit_table_local_plane": "INT32",
    "hit_table_local_time": "FP32",
    "hit_table_local_wire": "INT32",
    "hit_table_integral": "FP32",
    "hit_table_rms": "FP32",
    "spacepoint_table_spacepoint_id": "INT32",
    "spacepoint_table_hit_id_u": "INT32",
    "spacepoint_table_hit_id_v": "INT32",
    "spacepoint_table_hit_id_y": "INT32",
}
NUGRAPH2_OUTPUTS = {
    **{f"x_semantic_{plane}": ("FP32", [-1, 5]) for plane in "uvy"},
    **{f"x_filter_{plane}": ("FP32", [-1]) for plane in "uvy"},
}
NUGRAPH3_OUTPUTS = {
    **{f"x_semantic_{plane}": ("FP32", [-1, 7]) for plane in "uvy"},
    **{f"x_filter_{plane}": ("FP32", [-1]) for plane in "uvy"},
    "e_evt": ("FP32", [4]),
    "v_evt": ("FP32", [1, 3]),
}
OUTPUTS = {
    "nugraph2": NUGRAPH2_OUTPUTS,
    "nugraph2_cpu": NUGRAPH2_OUTPUTS,
    "nugraph3": NUGRAPH3_OUTPUTS,
}
ANSWER_S = 60
Tensors = dict[str, np.ndarray]


def read_event(path: Path) -> Tensors:
    """Read the first event of a pynuml file."""
    with EventFile(path) as file:
        found = file.read(0).tensors
    return {name: found[name] for name in INPUTS}


def ask(client: Any, module: Any, model: str, tensors: Tensors, outputs: Any = None) -> Tensors:
    inputs = inputs_of(module, tensors)
    names = list(outputs or OUTPUTS[model])
    asked = [module.InferRequestedOutput(name) for name in names]
    # What is never answered is to fail; HTTP's client has a limit of its own.
    limit = {"client_timeout": ANSWER_S} if module is grpc else {}
    result = client.infer(model, inputs, outputs=asked, **limit)
    return {name: result.as_numpy(name) for name in names}


@pytest.fixture(scope="module")
def event():
    return read_event(EVENTS)


@pytest.fixture
def http_client(demo):
    with http.InferenceServerClient(f"127.0.0.1:{demo['ports']['http']}", concurrency=16) as client:
        yield client


@pytest.fixture
def grpc_client(demo):
    with grpc.InferenceServerClient(f"127.0.0.1:{demo['ports']['grpc']}") as client:
        yield client


def check_metadata(client: http.InferenceServerClient, model: str) -> None:
    metadata = client.get_model_metadata(model)
    assert {t["name"]: (t["datatype"], t["shape"]) for t in metadata["inputs"]} == {
        name: (kind, [-1]) for name, kind in INPUTS.items()
    }
    found = {t["name"]: (t["datatype"], t["shape"]) for t in metadata["outputs"]}
    assert found == OUTPUTS[model]


@pytest.mark.parametrize("model", OUTPUTS)
def test_the_metadata_is_the_contract(http_client, model):
    check_metadata(http_client, model)


@pytest.mark.parametrize("model", OUTPUTS)
def test_rows_are_the_plane_s_hits_in_the_request_s_order(http_client, grpc_client, event, model):
    answers = [ask(http_client, http, model, event), ask(grpc_client, grpc, model, event)]
    for index, plane in enumerate("uvy"):
        hits = int((event["hit_table_local_plane"] == index).sum())
        classes = OUTPUTS[model][f"x_semantic_{plane}"][1][1]
        assert answers[0][f"x_semantic_{plane}"].shape == (hits, classes)
        assert answers[0][f"x_filter_{plane}"].shape == (hits,)
    if model == "nugraph3":
        assert answers[0]["e_evt"].shape == (1, 4)
        assert answers[0]["v_evt"].shape == (1, 3)
    for name, array in answers[0].items():
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
        np.testing.assert_allclose(answers[1][name], array, rtol=1e-5, atol=1e-6)


def test_only_what_is_asked_for_comes_back(http_client, event):
    answer = ask(http_client, http, "nugraph3", event, ["x_filter_v"])
    assert list(answer) == ["x_filter_v"]


HOSTILE = {
    "a short column": ("hit_table_rms", lambda a: a[:-1]),
    "a plane that is not there": ("hit_table_local_plane", lambda a: np.where(a == 2, 7, a)),
    "not a number": ("hit_table_local_time", lambda a: np.append(a[:-1], np.float32("nan"))),
    "infinity": ("hit_table_integral", lambda a: np.append(a[:-1], np.float32("inf"))),
    "an integral that pynuml drops": ("hit_table_integral", lambda a: a + np.float32(2e6)),
    "a wrong type": ("hit_table_hit_id", lambda a: a.astype(np.int64)),
    "a wrong rank": ("hit_table_hit_id", lambda a: a[None]),
    "a short spacepoint column": ("spacepoint_table_hit_id_y", lambda a: a[:-1]),
}


def spoiled(event: Tensors, case: str) -> Tensors:
    name, spoil = HOSTILE[case]
    array = spoil(event[name])
    return {**event, name: array if case == "a wrong type" else array.astype(event[name].dtype)}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_request_gets_one_line_and_harms_nobody(http_client, event, case):
    name, bad = HOSTILE[case][0], spoiled(event, case)
    with pytest.raises(InferenceServerException) as caught:
        ask(http_client, http, "nugraph3", bad)
    message = str(caught.value.message())
    assert name.split("_table_")[1] in message
    assert "Traceback" not in message
    assert len(message.splitlines()) == 1
    ask(http_client, http, "nugraph3", event)


def _without(tensors: Tensors, table: str) -> Tensors:
    return {n: a[:0] if n.startswith(table) else a for n, a in tensors.items()}


def _plane_emptied(tensors: Tensors, plane: int) -> Tensors:
    keep = tensors["hit_table_local_plane"] != plane
    return {n: a[keep] if n.startswith("hit_table") else a for n, a in tensors.items()}


@pytest.mark.parametrize("model", OUTPUTS)
def test_events_that_lack_something_get_a_right_sized_finite_answer(http_client, event, model):
    cases = [
        _without(event, "spacepoint_table"),
        _plane_emptied(event, 0),
        _without(event, "hit_table"),
        _without(_without(event, "hit_table"), "spacepoint_table"),
        {n: np.zeros_like(a) if n.startswith("hit_table_local") else a for n, a in event.items()},
    ]
    for tensors in cases:
        answer = ask(http_client, http, model, tensors)
        for index, plane in enumerate("uvy"):
            hits = int((tensors["hit_table_local_plane"] == index).sum())
            assert len(answer[f"x_semantic_{plane}"]) == hits
        assert all(np.isfinite(array).all() for array in answer.values())


def test_good_clients_lose_nothing_and_get_their_own_answers_beside_hostile_ones(
    demo, http_client, event
):
    """Eight clients with events of their own sizes, until one has sent 200 bad requests."""
    sizes = range(20, 180, 20)
    events = [
        {n: a[:size] if n.startswith("hit_table") else a for n, a in event.items()}
        for size in sizes
    ]
    expected = [ask(http_client, http, "nugraph3", e) for e in events]
    url = f"127.0.0.1:{demo['ports']['grpc']}"
    over = threading.Event()

    def good(index: int) -> int:
        answered = 0
        with grpc.InferenceServerClient(url) as client:
            while answered < 10 or not over.is_set():
                try:
                    answer = ask(client, grpc, "nugraph3", events[index])
                except InferenceServerException as error:
                    if "Request timeout expired" not in str(error):
                        raise
                    continue  # it waited too long on a busy host: clients come again
                for name, array in answer.items():
                    np.testing.assert_allclose(
                        array, expected[index][name], rtol=1e-4, atol=1e-5, err_msg=name
                    )
                answered += 1
        return answered

    def hostile() -> int:
        refused = 0
        try:
            with grpc.InferenceServerClient(url) as client:
                for case in itertools.islice(itertools.cycle(HOSTILE), 200):
                    column = HOSTILE[case][0].split("_table_")[1]
                    with pytest.raises(InferenceServerException, match=column):
                        ask(client, grpc, "nugraph3", spoiled(event, case))
                    refused += 1
        finally:
            over.set()
        return refused

    # What fails in a thread is raised by its future.
    with ThreadPoolExecutor(9) as pool:
        bad, answers = pool.submit(hostile), [pool.submit(good, index) for index in range(8)]
        assert bad.result(120) == 200
        assert all(answer.result(120) >= 10 for answer in answers)


def test_the_real_event_with_the_real_weights_gives_the_expected_answer(kit, real_data):
    checkpoint = real_data / "nugraph3_hierarchical.ckpt"
    norm = CHECKOUT / "tests" / "real_norm.json"
    answer = kit.up(
        "real",
        *SMALL,
        *("--checkpoint", f"nugraph3={checkpoint}", "--norm", f"nugraph3={norm}"),
    )
    event = read_event(real_data / "uboone_event_189hits.h5")
    expected = np.load(real_data / "uboone_event_189hits.nugraph3_expected.npz")
    ports = answer["ports"]
    for module, port in ((http, ports["http"]), (grpc, ports["grpc"])):
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            got = ask(client, module, "nugraph3", event)
        assert set(got) == set(expected.files)
        for name in expected.files:
            want = expected[name]
            assert got[name].shape == want.shape
            assert np.abs(got[name] - want).max() <= 1e-4 * np.abs(want).max()
            if want.ndim == 2:
                assert (got[name].argmax(1) == want.argmax(1)).all()
    kit.end("real")
