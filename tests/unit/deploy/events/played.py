"""A client library's server, played: it labels hits by their id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel
from deploy.host.errors import RequestError, ServerAwayError
from numl_formats.contract import INPUTS

NAMES = {"semantic_classes": "a,b,c", "event_classes": "p,q"}
MODEL = ServedModel("nugraph3", INPUTS, (), NAMES)
EVENT = {
    "hit_id": np.arange(4, dtype=np.int32),
    "local_plane": np.array([0, 1, 2, 0], np.int32),
    "local_wire": np.arange(4, dtype=np.int32),
    "local_time": np.zeros(4, np.float32),
    "integral": np.ones(4, np.float32),
    "rms": np.ones(4, np.float32),
    "spacepoint_table_spacepoint_id": np.zeros(0, np.int32),
}


class Fake:
    """Labels hits by their id."""

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        self.endpoint = endpoint

    def describe(self, model: str) -> ServedModel:
        if self.endpoint.port == 1:
            raise ServerAwayError(f"{self.endpoint.url}: refused")
        return MODEL

    def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        outputs: dict[str, Any] = {"e_evt": np.array([[0.9, 0.1]], np.float32)}
        if (tensors["hit_table_integral"] > 1e6).any():
            raise RequestError("hit_table/integral row 0 is 2e+06: above 1e6")
        for i, plane in enumerate("uvy"):
            ids = tensors["hit_table_hit_id"][tensors["hit_table_local_plane"] == i]
            outputs[f"x_semantic_{plane}"] = np.eye(3, dtype=np.float32)[ids % 3]
            outputs[f"x_filter_{plane}"] = (ids > 0).astype(np.float32)
        return outputs

    def close(self) -> None:
        pass
