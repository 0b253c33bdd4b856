"""Clients in a closed loop: each sends an event, waits for its answer, and sends the next one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport, triton_reason
from deploy.host.errors import RequestError
from scripts.benchmarks.cells import Floats, Tensors

_RELEASE_S = 1.0
_LONGEST = 6.0
"""A turn that cannot get enough answers in its time is given up to so many times as long."""


class Transport(Protocol):
    """What sends one event after another; used by one thread."""

    def infer(self, model: ServedModel, tensors: Tensors) -> dict[str, Any]:
        """Return the outputs by name."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Driven:
    """What clients saw: seconds of each round trip, and answers per second."""

    latencies: Floats
    rate: float


def drive(
    connect: Callable[[], Transport],
    model: ServedModel,
    events: Sequence[Tensors],
    *,
    concurrency: int,
    seconds: float,
    started: Callable[[], None] = lambda: None,
) -> Driven:
    """Let clients send events for ``seconds``, or longer, until each has had two answers.

    Each sends them in turn, beginning with another one, over a connection of its own. ``started``
    is called when all have had an answer, before any time is taken. The first error of a client is
    raised.
    """
    spans: list[list[tuple[float, float]]] = [[] for _ in range(concurrency)]
    errors: list[BaseException] = []
    ready, go = threading.Barrier(concurrency + 1), threading.Barrier(concurrency + 1)
    begun = [0.0]

    def wanted(now: float) -> bool:
        if errors or now >= begun[0] + _LONGEST * seconds:
            return False
        return now < begun[0] + seconds or any(len(each) < 2 for each in spans)

    def client(number: int) -> None:
        try:
            transport = connect()
            try:
                transport.infer(model, events[number % len(events)])
                ready.wait()
                go.wait()
                step, start = number, time.perf_counter()
                while wanted(start):
                    transport.infer(model, events[step % len(events)])
                    end = time.perf_counter()
                    spans[number].append((start, end))
                    step, start = step + 1, time.perf_counter()
            finally:
                transport.close()
        except threading.BrokenBarrierError:
            pass  # another client's error is told
        except BaseException as error:
            errors.append(error)
            ready.abort()
            go.abort()

    threads = [
        threading.Thread(target=client, args=(number,), daemon=True)
        for number in range(concurrency)
    ]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        started()
        begun[0] = time.perf_counter()
        go.wait()
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return summarise(spans)


def send_all(
    connect: Callable[[], Transport], model: ServedModel, events: Sequence[Tensors], *, clients: int
) -> None:
    """Send each event once, by several clients that share them; raise the first one's error."""
    waiting = iter(events)
    turn = threading.Lock()

    def client() -> None:
        transport = connect()
        try:
            while True:
                with turn:
                    event = next(waiting, None)
                if event is None:
                    return
                transport.infer(model, event)
        finally:
            transport.close()

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client) for _ in range(clients)]:
            done.result()


def summarise(spans: Sequence[Sequence[tuple[float, float]]]) -> Driven:
    """Return latencies and rate, given when each client's requests began and were answered (s).

    The rate is that of the time between the first answers, one of each client, and the moment
    when the first client has nothing more to do: before and after it not all are at work.
    """
    latencies = np.array([end - start for client in spans for start, end in client])
    until = min((client[-1][1] for client in spans if client), default=0.0)
    answered = np.sort([end for client in spans for _, end in client if end <= until])
    lead = min(len(spans), max(len(answered) - 1, 0))
    if lead < 1:  # the server is so slow that they never were
        first = min((start for client in spans for start, _ in client), default=0.0)
        last = max((end for client in spans for _, end in client), default=1.0)
        return Driven(latencies, len(latencies) / (last - first))
    rate = (len(answered) - lead) / (answered[-1] - answered[lead - 1])
    return Driven(latencies, float(rate))


_numbers = count()


class SharedMemoryTransport:
    """A gRPC connection whose tensors lie in a region of system shared memory.

    The server must let clients register regions. Inputs lie at the start of the region, outputs
    behind them.
    """

    def __init__(self, address: str, *, timeout: float) -> None:
        import tritonclient.grpc
        import tritonclient.utils.shared_memory

        self._grpc: Any = tritonclient.grpc
        self._shared: Any = tritonclient.utils.shared_memory
        self._client: Any = tritonclient.grpc.InferenceServerClient(address)
        self._timeout = timeout
        self._name = f"numlkit-benchmark-{os.getpid()}-{next(_numbers)}"
        self._region: Any = None
        self._size = 0
        self._shapes: dict[str, list[int]] = {}

    def infer(self, model: ServedModel, tensors: Tensors) -> dict[str, Any]:
        """Return the outputs by name."""
        if not self._shapes:
            metadata = self._ask("get_model_metadata", model.name, as_json=True)
            self._shapes = {
                output["name"]: [int(length) for length in output["shape"]]
                for output in metadata["outputs"]
            }
        hits = len(tensors["hit_table_hit_id"])
        room = {name: 4 * _elements(shape, hits) for name, shape in self._shapes.items()}
        inputs_end = sum(tensors[name].nbytes for name in model.inputs)
        self._provide(inputs_end + sum(room.values()))
        place, inputs, outputs = 0, [], []
        values = [tensors[name] for name in model.inputs]
        self._shared.set_shared_memory_region(self._region, values)
        for (name, datatype), array in zip(model.inputs.items(), values, strict=True):
            tensor = self._grpc.InferInput(name, array.shape, datatype)
            tensor.set_shared_memory(self._name, array.nbytes, place)
            inputs.append(tensor)
            place += array.nbytes
        places = {}
        for name, size in room.items():
            wanted = self._grpc.InferRequestedOutput(name)
            wanted.set_shared_memory(self._name, size, place)
            outputs.append(wanted)
            places[name] = place
            place += size
        result = self._ask(
            "infer", model.name, inputs, outputs=outputs, client_timeout=self._timeout
        )
        return {
            name: self._shared.get_contents_as_numpy(
                self._region, np.float32, list(result.get_output(name).shape), offset
            ).copy()
            for name, offset in places.items()
        }

    def close(self) -> None:
        """Remove the region and close the connection."""
        self._release()
        self._client.close()

    def _provide(self, size: int) -> None:
        """Have a region of at least ``size`` bytes."""
        if size <= self._size:
            return
        self._release()
        size *= 2  # room for the larger ones that may follow
        self._region = self._shared.create_shared_memory_region(self._name, self._name, size)
        self._ask("register_system_shared_memory", self._name, f"/{self._name}", size)
        self._size = size

    def _release(self) -> None:
        region, self._region, self._size = self._region, None, 0
        if region is None:
            return
        try:
            deadline = time.monotonic() + _RELEASE_S
            while True:
                try:
                    self._ask("unregister_system_shared_memory", self._name)
                    return
                except RequestError as error:
                    # The server lets go of it a moment after it has sent its answer.
                    if "currently in use" not in error.cause or time.monotonic() > deadline:
                        raise
                time.sleep(0.001)
        finally:
            self._shared.destroy_shared_memory_region(region)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return getattr(self._client, method)(*arguments, **options)
        except InferenceServerException as error:
            raise RequestError(f"{method}: {triton_reason(error.message())}") from error


def _elements(shape: Sequence[int], hits: int) -> int:
    """Return an upper bound."""
    return int(np.prod([hits if length < 0 else length for length in shape]))


def connector(
    protocol: str, addresses: Mapping[str, str], timeout: float
) -> Callable[[], Transport]:
    """Return a function that opens connections of a protocol, given ``host:port`` by protocol."""
    if protocol == "shm":
        return lambda: SharedMemoryTransport(addresses["grpc"], timeout=timeout)
    endpoint = Endpoint.parse(f"{protocol}://{addresses[protocol]}")
    return lambda: TritonTransport(endpoint, timeout=timeout)
