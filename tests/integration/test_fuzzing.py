"""Whatever clients send, an instance lives, stays within its memory, and answers the others right.

NUMLKIT_FUZZED_REQUESTS=100000 sends more requests than a run of every day.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from deploy.engines.server import living_stubs
from deploy.host.paths import CHECKOUT
from deploy.triton.golden import read_golden
from numl_formats.golden import GoldenEvent, difference
from tests.inputs import inputs_of

MODEL = "nugraph3"
REQUESTS = int(os.environ.get("NUMLKIT_FUZZED_REQUESTS", "1500"))
MEMORY = 1 << 30
"""What an instance may hold at most (bytes), for any request of up to 10 MB."""

LARGEST = 10_000_000
ANSWER_S = 120
IMPOSSIBLE = "tensor hit_table_hit_id has an impossible shape"
HITS = {
    "hit_id": np.int32,
    "local_plane": np.int32,
    "local_time": np.float32,
    "local_wire": np.int32,
    "integral": np.float32,
    "rms": np.float32,
}
SPACEPOINTS = ("spacepoint_id", "hit_id_u", "hit_id_v", "hit_id_y")
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Request:
    """What is posted: the JSON header and the binary tensors behind it."""

    header: bytes
    data: bytes


@dataclass
class Server:
    """The server under test, and what a client beside sees of it meanwhile."""

    ports: dict[str, int]
    stub: psutil.Process
    golden: GoldenEvent
    faults: list[str] = field(default_factory=list)
    answered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def post(self, request: Request) -> tuple[int, bytes, int]:
        """Return status, body, and how much of the body is the JSON header."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=ANSWER_S)
        length = {"Inference-Header-Content-Length": str(len(request.header))}
        try:
            body = request.header + request.data
            connection.request("POST", f"/v2/models/{MODEL}/infer", body, length)
            response = connection.getresponse()
            content = response.read()
            head = int(response.headers.get("Inference-Header-Content-Length", len(content)))
            return response.status, content, head
        finally:
            connection.close()

    def ask(self, request: Request) -> Columns | str:
        """Return the outputs, or the error's message."""
        status, content, head = self.post(request)
        answer = json.loads(content[:head])
        if status != http.client.OK:
            return str(answer["error"])
        outputs, place = {}, head
        for output in answer["outputs"]:
            size = output["parameters"]["binary_data_size"]
            values = np.frombuffer(content[place : place + size], np.float32)
            outputs[output["name"]] = values.reshape(output["shape"])
            place += size
        return outputs

    def grpc(self) -> grpc.InferenceServerClient:
        return grpc.InferenceServerClient(f"127.0.0.1:{self.ports['grpc']}")

    def peak(self) -> int:
        """Return the most memory that the instance has ever held, in bytes."""
        status = Path(f"/proc/{self.stub.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def watch(self) -> None:
        """Ask the golden event until it is over."""
        good = request(dict(self.golden.inputs))
        while not self.over.is_set():
            answer = self.ask(good)
            fault = answer if isinstance(answer, str) else difference(self.golden, answer)
            if fault is not None:
                self.faults.append(fault)
            self.answered += 1
            self.over.wait(0.05)

    def check(self) -> None:
        """Check that the instance is the one that it was, within its memory."""
        assert self.stub.is_running()
        assert self.stub.status() != psutil.STATUS_ZOMBIE
        assert self.peak() < MEMORY, f"{self.peak() >> 20} MiB were in use"
        assert self.faults == []


@pytest.fixture(scope="module")
def server(kit, tmp_path_factory):
    # The largest events that can be allowed, and good ones that wait behind them.
    file = tmp_path_factory.mktemp("fuzzed") / "fuzzed.toml"
    file.write_text("[limits]\nwaiting = 0\nwait_s = 0\nhits = 100000\n")
    answer = kit.up("fuzzed", str(file), "--models", MODEL, "--instances", "1")
    (stub,) = living_stubs(psutil.Process(answer["server"]["pid"]))
    golden = read_golden(CHECKOUT / "model_repository" / MODEL / "1" / "golden.npz")
    server = Server(answer["ports"], psutil.Process(stub.process.pid), golden)
    beside = threading.Thread(target=server.watch)
    beside.start()
    yield server
    server.over.set()
    beside.join()
    assert server.answered > 0
    server.check()
    kit.end("fuzzed")


def request(columns: Columns, *, outputs: list[str] | None = None) -> Request:
    inputs, data = [], []
    for name, array in columns.items():
        kind = {"f": "FP", "i": "INT", "u": "UINT"}[array.dtype.kind] + str(8 * array.itemsize)
        size = {"binary_data_size": array.nbytes}
        inputs.append(
            {"name": name, "shape": list(array.shape), "datatype": kind, "parameters": size}
        )
        data.append(array.tobytes())
    header: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        binary = {"binary_data": True}
        header["outputs"] = [{"name": name, "parameters": binary} for name in outputs]
    return Request(json.dumps(header).encode(), b"".join(data))


def event(
    rng: np.random.Generator, hits: int, spacepoints: int, ids: str, planes: str, numbers: str
) -> Columns:
    """Make the columns of an event, of one kind or another."""

    def integers(kind: str, size: int, high: int) -> Any:
        return {
            "distinct": lambda: rng.permutation(size),
            "few": lambda: rng.integers(-1, max(high // 10, 1), size),
            "same": lambda: np.zeros(size),
            "any": lambda: rng.integers(-(2**31), 2**31, size),
            "valid": lambda: rng.integers(0, 3, size),
        }[kind]()

    def floats(size: int) -> Any:
        return {
            "scattered": lambda: rng.uniform(0, 5000, size),
            "same": lambda: np.full(size, 7.0),
            "line": lambda: 3.0 * np.arange(size),
            "grid": lambda: rng.integers(0, 1 + int(size**0.5), size),
            "huge": lambda: rng.choice([3e38, -3e38, 1e-40, 0, 1], size),
            "bits": lambda: rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32),
        }[numbers]()

    columns: Columns = {}
    for name, dtype in HITS.items():
        values = floats(hits)
        if name == "hit_id":
            values = integers(ids, hits, hits)
        elif name == "local_plane":
            values = integers(planes, hits, 3)
        elif name == "local_wire":
            with np.errstate(invalid="ignore"):
                values = np.nan_to_num(np.asarray(values, np.float64)).clip(-(2**31), 2**31 - 1)
        columns[f"hit_table_{name}"] = np.asarray(values).astype(dtype)
    for name in SPACEPOINTS:
        kind = "few" if ids == "distinct" and name != "spacepoint_id" else ids
        values = integers(kind, spacepoints, hits * 10)
        columns[f"spacepoint_table_{name}"] = np.asarray(values).astype(np.int32)
    return columns


def damaged(rng: np.random.Generator, columns: Columns, damage: str) -> Request:
    """Return a request with one fault in it."""
    name = str(rng.choice(list(columns)))
    column = columns[name]
    changed = dict(columns)
    if damage == "missing":
        del changed[name]
    elif damage == "unknown":
        changed["hit_table_charge"] = column
    elif damage == "longer":
        changed[name] = np.append(column, column[:1]) if len(column) else column
    elif damage == "shorter":
        changed[name] = column[: len(column) // 2]
    elif damage == "wider":
        changed[name] = np.zeros(len(column), column.dtype.str.replace("4", "8"))
    elif damage == "two dimensions":
        changed[name] = column[None]
    elif damage == "another type":
        changed[name] = column.view(np.int32 if column.dtype.kind == "f" else np.float32)
    whole = request(changed, outputs=["x_other"] if damage == "unknown output" else None)
    if damage == "cut":
        return Request(whole.header, whole.data[: len(whole.data) // 2])
    if damage == "behind":
        return Request(whole.header, whole.data + rng.bytes(100))
    if damage == "shape":
        return Request(re.sub(rb'"shape": \[\d+', rb'"shape": [-7', whole.header), whole.data)
    if damage == "wrapping shape":
        return wrapping(whole)
    if damage == "size":
        return Request(re.sub(rb'_size": \d+', b'_size": 99999', whole.header), whole.data)
    if damage == "no JSON":
        return Request(whole.header[: len(whole.header) // 2], whole.data)
    if damage == "bytes":
        return Request(whole.header, rng.bytes(len(whole.data)))
    return whole


def wrapping(whole: Request) -> Request:
    """Return a request whose first tensor has as many bytes as its shape, in 64 bits that wrap."""
    shape = re.search(rb'"shape": \[(\d+)', whole.header)
    start, end = shape.span(1)
    size = str(int(shape[1]) + 2**62).encode()
    return Request(whole.header[:start] + size + whole.header[end:], whole.data)


SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 40, 300])
DAMAGES = (
    *("none", "none", "none", "missing", "unknown", "longer", "shorter", "wider"),
    *("two dimensions", "another type", "unknown output"),
    *("cut", "behind", "shape", "wrapping shape", "size", "no JSON", "bytes"),
)


@settings(
    max_examples=REQUESTS,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    hits=SIZES,
    spacepoints=SIZES,
    ids=st.sampled_from(["distinct", "few", "same", "any"]),
    planes=st.sampled_from(["valid", "valid", "same", "any"]),
    numbers=st.sampled_from(["scattered", "same", "line", "grid", "huge", "bits"]),
    damage=st.sampled_from(DAMAGES),
)
def test_a_malformed_request_is_an_error_or_an_answer_and_nothing_else(
    server, seed, hits, spacepoints, ids, planes, numbers, damage
):
    rng = np.random.default_rng(seed)
    columns = event(rng, hits, spacepoints, ids, planes, numbers)
    answer = server.ask(damaged(rng, columns, damage))
    if isinstance(answer, str):
        assert answer
        assert "not healthy" not in answer
    else:
        assert all(np.isfinite(array).all() for array in answer.values())
    server.check()


@pytest.mark.parametrize(
    ("share", "planes", "ids", "numbers"),
    [
        (0.01, "valid", "few", "scattered"),
        (0.5, "same", "same", "same"),
        (0.5, "valid", "distinct", "line"),
        (0.5, "same", "few", "huge"),
        (1.0, "valid", "distinct", "scattered"),
        (1.0, "same", "distinct", "grid"),
    ],
)
def test_a_large_request_stays_within_the_memory_of_an_instance(
    server, share, planes, ids, numbers
):
    """A share of the bytes is hits, the rest spacepoints."""
    hits = int(share * LARGEST) // (4 * len(HITS))
    spacepoints = int((1 - share) * LARGEST) // (4 * len(SPACEPOINTS))
    rng = np.random.default_rng(hits)
    answer = server.ask(request(event(rng, hits, spacepoints, ids, planes, numbers)))
    if isinstance(answer, str):
        assert "not healthy" not in answer
    print(f"{answer if isinstance(answer, str) else 'answered'}; {server.peak() >> 20} MiB")
    server.check()


def test_a_tensor_larger_than_any_memory_is_refused_by_name(server):
    columns = event(np.random.default_rng(0), 5, 0, "distinct", "valid", "scattered")
    assert server.ask(wrapping(request(columns))) == IMPOSSIBLE
    # Only gRPC takes negative sizes; of HTTP, Triton refuses them itself.
    inputs = inputs_of(grpc, columns)
    inputs[0].set_shape([5 - 2**63])
    with server.grpc() as client, pytest.raises(InferenceServerException, match=IMPOSSIBLE):
        client.infer(MODEL, inputs, client_timeout=ANSWER_S)
    server.check()


def test_ids_that_would_explode_into_edges_are_refused_with_the_reason(server):
    rng = np.random.default_rng(0)
    answer = server.ask(request(event(rng, 10_000, 10_000, "same", "same", "scattered")))
    assert isinstance(answer, str)
    assert "ids must be unique in a plane" in answer
