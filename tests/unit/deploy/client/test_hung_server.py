"""A server that hangs, or whose host is cut off, is away: its requests go to another."""

from contextlib import closing

import numpy as np
import pytest

from deploy.client import endpoint
from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport
from deploy.host.errors import NoAnswerError, ServerAwayError
from tests.cpp.scripted import stoppable

MODEL = ServedModel("nugraph3", {"hit_table_local_plane": "INT32"}, ("x_filter_u",), {})
EVENT = {"hit_table_local_plane": np.zeros(3, dtype=np.int32)}


def test_a_server_that_is_stopped_is_away_long_before_the_timeout(monkeypatch):
    waits = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = tuple((name, 300 if name in waits else value) for name, value in endpoint._OPTIONS)
    monkeypatch.setattr(endpoint, "_OPTIONS", options)
    with stoppable() as server:
        address = Endpoint.parse(f"grpc://127.0.0.1:{server.port}")
        with closing(TritonTransport(address, timeout=60)) as transport:
            assert len(transport.infer(MODEL, EVENT)["x_filter_u"]) == 3
            server.stop()
            with pytest.raises(ServerAwayError):
                transport.infer(MODEL, EVENT)


def test_a_server_that_hangs_is_not_taken_for_one_that_keeps_its_configuration_to_itself():
    with stoppable() as server:
        address = Endpoint.parse(f"grpc://127.0.0.1:{server.port}")
        with closing(TritonTransport(address, timeout=1)) as transport:
            assert transport.parameters("nugraph3") == {}
            server.stop()
            with pytest.raises(NoAnswerError):
                transport.parameters("nugraph3")
