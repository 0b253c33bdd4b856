"""A client library's server, played: it labels hits by their id."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel
from deploy.host.errors import RequestError, ServerAwayError
from numl_formats.contract import INPUTS

NAMES = {"semantic_classes": "a,b,c", "event_classes": "p,q"}
MODEL = ServedModel("nugraph3", INPUTS, (), NAMES)
LOCAL = Endpoint.parse("localhost")
EVENT = {
    "hit_id": np.arange(4, dtype=np.int32),
    "local_plane": np.array([0, 1, 2, 0], np.int32),
    "local_wire": np.arange(4, dtype=np.int32),
    "local_time": np.zeros(4, np.float32),
    "integral": np.ones(4, np.float32),
    "rms": np.ones(4, np.float32),
    "spacepoint_table_spacepoint_id": np.zeros(0, np.int32),
}


def labels(
    tensors: Mapping[str, Any], classes: int = 3, signal: Callable[[Any], Any] = np.ones_like
) -> dict[str, Any]:
    """Return a model's outputs: hits labelled by their id, and how much signal each is."""
    outputs: dict[str, Any] = {}
    for i, plane in enumerate("uvy"):
        ids = tensors["hit_table_hit_id"][tensors["hit_table_local_plane"] == i]
        outputs[f"x_semantic_{plane}"] = np.eye(classes, dtype=np.float32)[ids % classes]
        outputs[f"x_filter_{plane}"] = signal(ids).astype(np.float32)
    return outputs


class Fake:
    """Labels hits by their id, the first as noise; refuses an integral above 1e6."""

    def __init__(self, endpoint: Endpoint = LOCAL, *, timeout: float = 0) -> None:
        self.endpoint = endpoint

    def describe(self, model: str) -> ServedModel:
        if self.endpoint.port == 1:
            raise ServerAwayError(f"{self.endpoint.url}: refused")
        return MODEL

    def parameters(self, model: str) -> dict[str, str]:
        return dict(self.describe(model).parameters)

    def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        if (tensors["hit_table_integral"] > 1e6).any():
            raise RequestError("hit_table/integral row 0 is 2e+06: above 1e6")
        event = {"e_evt": np.array([[0.9, 0.1]], np.float32)}
        return labels(tensors, signal=lambda ids: ids > 0) | event

    def close(self) -> None:
        pass


class Weighted(Fake):
    """Has weights, or is "away", by its host; one that restarts may have others then."""

    weights: ClassVar[dict[str, str]] = {}
    restarts: ClassVar[dict[str, str]] = {}

    def parameters(self, model: str) -> dict[str, str]:
        found = self.weights.get(self.endpoint.host)
        if found == "away":
            raise ServerAwayError("it starts")
        return {**NAMES, **({"weights_sha256": found} if found else {})}

    def describe(self, model: str) -> ServedModel:
        return replace(MODEL, parameters=self.parameters(model))

    def infer(self, *request: Any) -> dict[str, Any]:
        host = self.endpoint.host
        if host in self.restarts:
            self.weights[host] = self.restarts.pop(host)
            raise ServerAwayError(f"{self.endpoint.url}: refused")
        return super().infer(*request)
