#!/usr/bin/env python3
"""Compare the C++ client with Python clients, and both with the server's own time.

``python3 scripts/benchmark_cpp.py NUML_LABEL --url ADDRESS`` lets numl-label, with 8 requests in
flight on one connection, and 8 Python clients send the same small event to one server, in turns.
Then numl-label sends one request at a time, and the server's own statistics say how much of that
is its own; so does a bare call of gRPC, bytes for bytes: what that takes over the server's own
time, no client can do without. Other work on the machine slows all of them alike: trust the ratios.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.host.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing

from deploy.client.endpoint import Endpoint, open_channel
from deploy.client.load.connection import INFER, as_request
from deploy.client.transport import TritonTransport
from deploy.events.files import EventFile
from deploy.host.cli import carry_out
from deploy.host.command_line import Parser
from deploy.host.console import Console, Say
from deploy.host.errors import RequestError
from scripts.benchmarks.flags import as_count

# Python clients as people write them: each a process with a connection, one event at a time. With
# an event they do what numl-label does: make the tensors, ask, put the rows in the hits' order.
_CLIENT = """
import sys
import numpy as np
import tritonclient.grpc as triton
from deploy.events.files import EventFile
url, model, path, count = sys.argv[1:]
tensors = EventFile(__import__("pathlib").Path(path)).read(0).tensors
plane = tensors["hit_table_local_plane"].ravel()
client = triton.InferenceServerClient(url)
def inputs():
    for name, values in tensors.items():
        kind = "INT32" if values.dtype.kind == "i" else "FP32"
        one = triton.InferInput(name, list(values.shape), kind)
        one.set_data_from_numpy(values)
        yield one
def answer():
    while True:
        try:
            return client.infer(model, list(inputs()))
        except triton.InferenceServerException as error:
            if error.status() != "StatusCode.UNAVAILABLE":
                raise
def ask():
    told = answer()
    of_hits = {}
    for output in "x_semantic", "x_filter":
        parts = [told.as_numpy(f"{output}_{name}") for name in "uvy"]
        of_hits[output] = np.empty((len(plane), *parts[0].shape[1:]), np.float32)
        for number, part in enumerate(parts):
            of_hits[output][plane == number] = part
    of_hits["x_semantic"].argmax(axis=1)
    told.as_numpy("e_evt"), told.as_numpy("v_evt")
ask()
print(flush=True); sys.stdin.readline()
import resource
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before = cpu()
for _ in range(int(count)):
    ask()
print(cpu() - before, flush=True)
"""


def python_clients(url: str, model: str, path: Path, requests: int) -> tuple[float, float]:
    """Return answers per second, and CPU milliseconds per request, of 8 clients that share them."""
    each = -(-requests // 8)
    requests = 8 * each
    words = [sys.executable, "-c", _CLIENT, url, model, str(path), str(each)]
    clients = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for client in clients:  # imports and the first request are not counted
        assert client.stdout is not None
        client.stdout.readline()
    started = time.perf_counter()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    answers = [client.communicate()[0] for client in clients]
    took = time.perf_counter() - started
    if any(client.returncode for client in clients):
        raise RequestError("a Python client failed")
    return requests / took, 1e3 * sum(map(float, answers)) / requests


def cpp_client(
    program: Path, url: str, model: str, path: Path, requests: int, in_flight: int
) -> tuple[float, float, float]:
    """Return answers per second, CPU and mean latency in milliseconds, of numl-label."""

    def run(repeat: int) -> tuple[float, dict[str, float]]:
        words = [program, "--url", url, "--model", model, "--json"]
        words += ["--in-flight", str(in_flight), "--repeat", str(repeat), path]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RequestError(done.stderr.strip())
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return cpu, json.loads(done.stdout)

    start, _ = run(1)  # not counted, as with the Python clients
    cpu, told = run(requests + 1)
    return told["events"] / told["seconds"], 1e3 * (cpu - start) / requests, told["mean_latency_ms"]


def bare_call(endpoint: Endpoint, model: str, path: Path, requests: int) -> float:
    """Return the mean latency in milliseconds of calls that send and get bytes, one at a time."""
    import grpc

    with closing(TritonTransport(endpoint, timeout=60)) as transport:
        described = transport.describe(model)
    with EventFile(path, described.inputs, described.optional) as file:
        content = as_request(described, file.read(0).tensors)
    with open_channel(grpc, endpoint) as channel:
        ask = channel.unary_unary(INFER)
        ask(content)  # connects
        started = time.perf_counter()
        for _ in range(requests):
            ask(content)
        return 1e3 * (time.perf_counter() - started) / requests


def server_time(url: str, model: str) -> tuple[int, float]:
    """Return how many requests a model has answered, and their milliseconds in the server."""
    import tritonclient.grpc as triton

    [told] = triton.InferenceServerClient(url).get_inference_statistics(model).model_stats
    return told.inference_stats.success.count, told.inference_stats.success.ns / 1e6


def small_event(folder: Path) -> Path:
    """Write the first event of the demo file to a file of its own."""
    import h5py

    path = folder / "event.h5"
    demo = Path(__file__).parent / "data" / "demo_events.h5"
    with h5py.File(demo) as whole, h5py.File(path, "w") as part:
        for table in ("hit_table", "spacepoint_table", "event_table"):
            ids = whole[f"{table}/event_id"][...]
            mine = (ids == ids[0]).all(axis=1)
            for name, column in whole[table].items():
                if len(column) == len(mine) and not name.startswith("event_id.seq"):
                    part[f"{table}/{name}"] = column[...][mine]
    return path


def parser() -> Parser:
    parser = Parser(
        prog="python3 scripts/benchmark_cpp.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("program", type=Path, help="numl-label, as clients/cpp/check builds it")
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default="nugraph3")
    parser.add_argument("--rounds", type=as_count, default=5, metavar="N")
    parser.add_argument("--requests", type=as_count, default=400, metavar="N", help="in each turn")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options, console = parser().parse_args(argv), Console()
    return carry_out(lambda: _compare(options, console.line), console)


def _compare(chosen: argparse.Namespace, say: Say) -> int:
    rates: list[float] = []
    cpus: list[float] = []
    over: list[float] = []
    bare: list[float] = []
    endpoint = Endpoint.parse(chosen.url, protocol="grpc")
    url = endpoint.address
    with tempfile.TemporaryDirectory() as folder:
        path = small_event(Path(folder))
        for _ in range(chosen.rounds):
            rate, cpu, _ = cpp_client(chosen.program, url, chosen.model, path, chosen.requests, 8)
            python_rate, python_cpu = python_clients(url, chosen.model, path, chosen.requests)
            before = server_time(url, chosen.model)
            _, _, latency = cpp_client(chosen.program, url, chosen.model, path, chosen.requests, 1)
            between = server_time(url, chosen.model)
            bare_latency = bare_call(endpoint, chosen.model, path, chosen.requests)
            after = server_time(url, chosen.model)
            own = _mean_ms(before, between)
            rates.append(rate / python_rate)
            cpus.append(cpu / python_cpu)
            over.append(latency - own)
            bare.append(bare_latency - _mean_ms(between, after))
            say(
                f"C++ {rate:.1f}/s, {cpu:.3f} ms CPU; Python {python_rate:.1f}/s, "
                f"{python_cpu:.3f} ms CPU; one at a time {latency:.3f} ms, server {own:.3f} ms"
            )
    say(
        f"medians: rate x{statistics.median(rates):.2f}, CPU x{statistics.median(cpus):.3f}, "
        f"over the server's own time {statistics.median(over):.3f} ms, "
        f"a bare call {statistics.median(bare):.3f} ms"
    )
    return 0


def _mean_ms(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


if __name__ == "__main__":
    sys.exit(main())
