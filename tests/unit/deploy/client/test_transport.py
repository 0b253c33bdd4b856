"""Model descriptions and error texts; a server is played where one is asked."""

import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport, triton_reason
from deploy.host.errors import ServerAwayError


def test_class_names_come_from_the_configuration_if_they_fit():
    model = ServedModel("m", {}, (), {"semantic_classes": "a, b,c"})
    assert model.classes("semantic", 3) == ("a", "b", "c")
    assert model.classes("semantic", 2) == ("class_0", "class_1")
    assert model.classes("event", 1) == ("class_0",)
    assert model.classes("event", 0) == ()


def test_a_model_is_shown_with_what_its_weights_are():
    assert ServedModel("m", {}, (), {}).title == "m"
    assert ServedModel("m", {}, (), {"weights": "demo weights"}).title == "m (demo weights)"


@pytest.mark.parametrize(("message", "reason"), [
    ("plain", "plain"),
    ("Failed to process the request(s) for model instance 'nugraph3_0_1', message: "
     "ValueError: no\n\nAt:\n  /models/nugraph3/1/model.py(12): execute\n", "ValueError: no"),
    ("Failed to process the request(s) for model 'nugraph3_0', message: "
     "EventError: hit_table/rms row 3 is nan", "hit_table/rms row 3 is nan"),
    ("two\nlines", "two lines"),
])  # fmt: skip
def test_a_reason_is_one_line_without_wrapping(message, reason):
    assert triton_reason(message) == reason


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_is_not_there_is_away(scheme):
    # Port 1 is reserved; nothing listens there.
    transport = TritonTransport(Endpoint.parse(f"{scheme}://127.0.0.1:1"), timeout=5)
    try:
        with pytest.raises(ServerAwayError, match=rf"^{scheme}://127\.0\.0\.1:1: .*refused"):
            transport.describe("nugraph3")
    finally:
        transport.close()


@contextmanager
def refusing(code: grpc.StatusCode, words: str) -> Iterator[TritonTransport]:
    """A connection to a server that answers everything so."""

    class Refusal(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            def answer(_request, context):
                context.abort(code, words)

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Refusal(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    transport = TritonTransport(Endpoint.parse(f"grpc://127.0.0.1:{port}"), timeout=5)
    yield transport
    transport.close()
    server.stop(None).wait()


def test_a_model_that_a_newer_triton_calls_not_found_is_not_ready():
    words = "Request for unknown model: 'x' is not found"  # as Triton 26.07
    with refusing(grpc.StatusCode.NOT_FOUND, words) as transport:
        assert not transport.model_ready("x")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("Exceeds maximum queue size", "Exceeds maximum queue size: try again in 1 s"),
        ("Request timeout expired", "Request timeout expired: try again in 1 s"),
        ("Request timeout expired: try again in 2 s", "Request timeout expired: try again in 2 s"),
        ("Socket closed", "Socket closed"),
    ],
)
def test_a_server_that_is_too_busy_is_told_with_when_to_try_again(words, told):
    with (
        refusing(grpc.StatusCode.UNAVAILABLE, words) as transport,
        pytest.raises(ServerAwayError) as caught,
    ):
        transport.describe("nugraph3")
    assert caught.value.cause.endswith(f": {told}")


def test_a_stream_that_has_failed_before_its_request_is_sent_says_why(monkeypatch):
    def slowly(*_of_a_request: object) -> list[object]:
        time.sleep(1)  # the connection is refused meanwhile
        return []

    transport = TritonTransport(Endpoint.parse("grpc://127.0.0.1:1"), timeout=5)
    monkeypatch.setattr(transport, "_tensors", slowly)
    with pytest.raises(ServerAwayError):
        transport.stream(ServedModel("m", {}, (), {}), {})
