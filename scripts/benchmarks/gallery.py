"""Ask the gallery's models: where the time of a request goes, and what transports cost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from deploy.client.endpoint import Endpoint
from deploy.client.example import example_inputs
from deploy.client.probe import answer_to
from deploy.client.transport import TritonTransport
from deploy.triton.golden import golden_of
from numl_formats.golden import GoldenEvent, one_by_one
from scripts.benchmarks.document import Document, spread

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
SIDE = 153  # voxels: 14.3 MB in float32
CLIENTS = 8
ROUNDS = 5


def measure_entry(
    server: grpc.InferenceServerClient, url: str, folder: Path, seconds: float
) -> Document:
    """Return milliseconds of a request of an entry, from one client over gRPC, by part."""
    model, inputs, golden = folder.name, example_inputs(folder), golden_of(folder)
    config = server.get_model_config(model).config
    steps = [step.model_name for step in config.ensemble_scheduling.step] or [model]
    at_once = len(one_by_one(inputs)) if GoldenEvent(inputs, {}).is_sequence else 1
    decoupled = golden is not None and golden.is_decoupled
    trips: list[float] = []
    with closing(TritonTransport(Endpoint.parse(f"grpc://{url}"), timeout=60)) as transport:
        served = transport.describe(model)
        answer_to(transport, served, inputs, decoupled=decoupled)
        before = _spent(server, steps)
        while sum(trips) < seconds or len(trips) < 5:
            start = time.perf_counter()
            answer_to(transport, served, inputs, decoupled=decoupled)
            trips.append(time.perf_counter() - start)
    requests = at_once * len(trips)
    parts = 1e3 * (_spent(server, steps) - before) / requests
    found = {"trip": 1e3 * sum(trips) / requests, **dict(zip(PARTS, parts.tolist(), strict=True))}
    return {"model": model, "steps": len(steps), "requests": requests, **found}


def measure_ocr(
    server: grpc.InferenceServerClient, url: str, gallery: Path, seconds: float
) -> Document:
    """Return how the ensemble compares with the same steps in one process, each having its turn."""
    parameters = server.get_model_config("ocr_detect").config.parameters
    python = Path(parameters["EXECUTION_ENV_PATH"].string_value) / "bin" / "python"
    program = Path(__file__).with_name("ocr_in_process.py")
    command = [str(python), "-P", str(program), str(gallery), str(seconds)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    tensors = as_tensors(grpc, example_inputs(gallery / "ocr"))
    rounds = []
    for _ in range(ROUNDS):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        alone = float(np.median(json.loads(done.stdout)["seconds"]))
        one = _latency(lambda: server.infer("ocr", tensors), seconds)
        rate = _rate(url, "ocr", tensors, seconds)
        rounds.append((1e3 * alone, 1e3 * one, rate, one / alone, rate * alone))
    names = ("in_process_ms", "one_client_ms", "rate", "slower", "more_pictures")
    return dict(zip(names, map(spread, zip(*rounds, strict=True)), strict=True))


def measure_volume(grpc_url: str, http_url: str, model: str, rounds: int) -> list[Document]:
    """Return what it takes to get a volume to a model and its mask back, besides computing.

    The ways take turns; of each turn's two requests the second counts, as of a client that has
    chosen its way: the first finds in the processor's caches what the way before left there.
    """
    volume = np.random.default_rng(0).random((SIDE, SIDE, SIDE), np.float32)
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(grpc.InferenceServerClient(grpc_url))
        plain = stack.enter_context(http.InferenceServerClient(http_url, network_timeout=120))
        ways: dict[str, Callable[[], Any]] = {
            "HTTP": lambda: plain.infer(
                model, as_tensors(http, {"volume": volume}), outputs=_mask(http)
            ).as_numpy("mask"),
            "gRPC": lambda: server.infer(
                model, as_tensors(grpc, {"volume": volume}), outputs=_mask(grpc)
            ).as_numpy("mask"),
        }
        put, ask_there = stack.enter_context(_by_shared_memory(server, model, volume))
        ways["shared memory"] = lambda: (put(), ask_there())
        ways["shared memory, without a copy"] = ask_there
        for _ in range(rounds):
            for way, ask in ways.items():
                ask()
                before, start = _spent(server, [model])[2], time.perf_counter()
                ask()
                trip = time.perf_counter() - start
                spent.setdefault(way, []).append(trip - _spent(server, [model])[2] + before)
    return [
        {"way": way, "megabytes": volume.nbytes / 1e6, "ms": spread(1e3 * np.array(times))}
        for way, times in spent.items()
    ]


@contextmanager
def _by_shared_memory(
    server: grpc.InferenceServerClient, model: str, volume: NDArray[np.float32]
) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Yield a function that puts the volume there, and one that asks."""
    tensor, mask = as_tensors(grpc, {"volume": volume})[0], _mask(grpc)[0]
    with ExitStack() as stack:
        regions = []
        for use, size in ((tensor, volume.nbytes), (mask, volume.size)):
            name = f"numlkit-benchmark-{os.getpid()}-{use.name()}"
            regions.append(shm.create_shared_memory_region(name, f"/{name}", size))
            stack.callback(shm.destroy_shared_memory_region, regions[-1])
            server.register_system_shared_memory(name, f"/{name}", size)
            stack.callback(_unregister, server, name)
            use.set_shared_memory(name, size)

        def put() -> None:
            shm.set_shared_memory_region(regions[0], [volume])

        def ask() -> Any:
            server.infer(model, [tensor], outputs=[mask])
            return shm.get_contents_as_numpy(regions[1], np.uint8, volume.shape)

        yield put, ask


def _unregister(server: grpc.InferenceServerClient, name: str) -> None:
    for last in (*(False,) * 99, True):
        try:
            server.unregister_system_shared_memory(name)
            return
        except InferenceServerException:  # Triton holds it a moment longer than its answer takes
            if last:
                raise
            time.sleep(0.01)


def as_tensors(library: Any, arrays: dict[str, NDArray[Any]]) -> list[Any]:
    """Return arrays as a client library (gRPC's or HTTP's) takes them."""
    tensors = []
    for name, array in arrays.items():
        kind = np_to_triton_dtype(array.dtype)
        tensors.append(library.InferInput(name, list(array.shape), kind))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def _mask(library: Any) -> list[Any]:
    return [library.InferRequestedOutput("mask")]


def _spent(server: grpc.InferenceServerClient, models: list[str]) -> NDArray[np.float64]:
    """Return seconds that models have spent in all, by part."""
    found = np.zeros(len(PARTS))
    for model in models:
        stats = server.get_inference_statistics(model).model_stats[0].inference_stats
        found += [getattr(stats, part).ns / 1e9 for part in PARTS]
    return found


def _latency(ask: Callable[[], Any], seconds: float) -> float:
    spent: list[float] = []
    while sum(spent) < seconds or len(spent) < 3:
        start = time.perf_counter()
        ask()
        spent.append(time.perf_counter() - start)
    return float(np.median(spent))


def _rate(url: str, model: str, tensors: list[Any], seconds: float) -> float:
    """Return requests a second of several clients in a closed loop."""
    end = time.perf_counter() + seconds

    def client(_number: int) -> int:
        done = 0
        with grpc.InferenceServerClient(url) as server:
            while time.perf_counter() < end:
                server.infer(model, tensors)
                done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = sum(pool.map(client, range(CLIENTS)))
    return done / (time.perf_counter() - start)
