"""The calls of LArSoft's clients, in their order: NuSonic's, and the plain Triton module's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc

from deploy.events.files import EventFile
from numl_formats.contract import INPUTS
from tests.inputs import EVENTS

Tensors = Mapping[str, NDArray[Any]]
TIMEOUT_S = 60
FEWEST_HITS = 10  # the client skips smaller events


def demo_events() -> list[Tensors]:
    with EventFile(EVENTS) as file:
        events = [file.read(index).tensors for index in range(len(file))]
    return [event for event in events if len(event["hit_table_hit_id"]) >= FEWEST_HITS]


def slices(event: Tensors, count: int) -> list[Tensors]:
    """Cut an event into graphs of neighbouring hits, whose ids are keys of the whole collection."""
    hits = {name: np.array_split(a, count) for name, a in event.items() if name.startswith("hit_")}
    empty = {n: a[:0] for n, a in event.items() if n.startswith("spacepoint_")}
    return [{**{n: parts[i] for n, parts in hits.items()}, **empty} for i in range(count)]


@dataclass
class Sonic:
    """One job's client, on one connection.

    Attributes:
        address: host:port, as FHiCL's serverURL.
        tries: FHiCL's allowedTries.
    """

    address: str
    model: str = "nugraph3"
    tries: int = 1

    def __post_init__(self) -> None:
        self._channel = grpc.insecure_channel(self.address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def begin_job(self) -> list[str]:
        """Ask for configuration and metadata, check the inputs; return the outputs' names."""
        name = self.model
        config = self._stub.ModelConfig(messages.ModelConfigRequest(name=name), timeout=TIMEOUT_S)
        told = self._stub.ModelMetadata(messages.ModelMetadataRequest(name=name), timeout=TIMEOUT_S)
        assert config.config.max_batch_size == 0
        required = {i.name for i in config.config.input if not i.optional}
        assert required == set(INPUTS)
        assert all(list(i.shape) == [-1] for i in told.inputs if i.name in required)
        return [output.name for output in told.outputs]

    def produce(self, *graphs: Tensors) -> list[dict[str, list[int]]]:
        """Send the graphs of an event at once; return the shapes of what comes back."""
        asked = messages.ModelStatisticsRequest(name=self.model)
        for left in reversed(range(self.tries)):
            try:
                before = self._stub.ModelStatistics(asked, timeout=TIMEOUT_S)
                assert before.model_stats[0].name == self.model
                sent = [self._request(graph) for graph in graphs]
                calls = [self._stub.ModelInfer.future(one, timeout=TIMEOUT_S) for one in sent]
                return [{o.name: list(o.shape) for o in call.result().outputs} for call in calls]
            except grpc.RpcError:
                if not left:
                    raise
                # As a job's next try does: not before the connection is there again.
                grpc.channel_ready_future(self._channel).result(timeout=TIMEOUT_S)
        raise AssertionError

    def end_job(self) -> None:
        self._channel.close()

    def _request(self, graph: Tensors) -> messages.ModelInferRequest:
        request = messages.ModelInferRequest(model_name=self.model, model_version="")
        for name in INPUTS:
            kind = "INT32" if graph[name].dtype.kind == "i" else "FP32"
            request.inputs.add(name=name, datatype=kind, shape=graph[name].shape)
            request.raw_input_contents.append(graph[name].tobytes())
        return request
