"""Model descriptions and error texts; a server is played where one is asked."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import inf

import grpc
import pytest

from deploy.client import transport as module
from deploy.client.endpoint import Endpoint
from deploy.client.transport import BusyError, ServedModel, TritonTransport, triton_reason
from deploy.host.errors import KitError, RequestError, ServerAwayError
from tests.unit.deploy.client.servers import Metrics, grpc_server, http_server


def connected(url: str) -> TritonTransport:
    return TritonTransport(Endpoint.parse(url), timeout=5)


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
    with (
        closing(connected(f"{scheme}://127.0.0.1:1")) as transport,
        pytest.raises(ServerAwayError, match=rf"^{scheme}://127\.0\.0\.1:1: .*refused"),
    ):
        transport.describe("nugraph3")


@contextmanager
def refusing(
    code: grpc.StatusCode, words: str, times: float = inf, left: list[float] | None = None
) -> Iterator[TritonTransport]:
    """A connection to a server that answers so, everything or the first requests.

    It notes how many seconds each request has ``left``.
    """
    asked, left = 0, [] if left is None else left

    class Refusal(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            def answer(_request, context):
                nonlocal asked
                asked += 1
                left.append(context.time_remaining())
                if asked <= times:
                    context.abort(code, words)
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    with (
        grpc_server(serves=lambda server: server.add_generic_rpc_handlers((Refusal(),))) as port,
        closing(connected(f"grpc://127.0.0.1:{port}")) as transport,
    ):
        yield transport


def test_a_model_that_a_newer_triton_calls_not_found_is_not_ready():
    words = "Request for unknown model: 'x' is not found"  # as Triton 26.07
    with refusing(grpc.StatusCode.NOT_FOUND, words) as transport:
        assert not transport.model_ready("x")


RATE = "Received http2 header with status: 429"  # gRPC's words for HAProxy's answer
TOO_LARGE = "SERVER: Received message larger than max (5000000 vs. 4194304)"


@pytest.mark.parametrize(
    ("code", "words", "kind", "told"),
    [
        ("UNAVAILABLE", "Exceeds maximum queue size", BusyError, "{}: try again in 1 s"),
        ("UNAVAILABLE", "Request timeout expired", BusyError, "{}: try again in 1 s"),
        ("UNAVAILABLE", "Request timeout expired: try again in 2 s", BusyError, "{}"),
        ("UNAVAILABLE", RATE, BusyError, "status 429, too many requests: try again in 1 s"),
        ("UNAVAILABLE", "Socket closed", ServerAwayError, "{}"),
        ("INTERNAL", "Received RST_STREAM with error code 2", ServerAwayError, "{}"),
        ("CANCELLED", "Received RST_STREAM with error code 8", ServerAwayError, "{}"),
        ("UNKNOWN", "Stream removed", ServerAwayError, "{}"),
        ("UNKNOWN", "Socket closed", ServerAwayError, "{}"),
        ("RESOURCE_EXHAUSTED", TOO_LARGE, RequestError, "{}"),
    ],
)
def test_a_refusal_says_whether_and_when_to_try_again(monkeypatch, code, words, kind, told):
    monkeypatch.setattr(module, "_PAUSE_S", 60)  # longer than the timeout: it is asked once
    with refusing(grpc.StatusCode[code], words) as transport, pytest.raises(KitError) as caught:
        transport.metadata("nugraph3")
    assert type(caught.value) is kind
    assert caught.value.cause.endswith(told.format(words))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "local_rate_limited"),
        (grpc.StatusCode.UNAVAILABLE, RATE),
        (grpc.StatusCode.UNKNOWN, RATE),
        (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
    ],
)
def test_a_client_above_its_rate_is_answered_after_a_while(code, words):
    with refusing(code, words, times=3) as transport:
        assert transport.metadata("nugraph3") == {}


def test_a_timeout_counts_the_wait_at_a_busy_server_too(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.5)
    left: list[float] = []
    with refusing(grpc.StatusCode.UNAVAILABLE, RATE, times=1, left=left) as transport:
        transport.metadata("nugraph3")
    assert left[1] < left[0] - 0.2


def test_a_client_above_its_rate_is_answered_after_a_while_over_http():
    class Limited(Metrics):
        asked = 0

        def do_GET(self) -> None:  # noqa: N802
            Limited.asked += 1
            refused = (429, b"<html>429 Too Many Requests</html>")
            self.status, self.page = refused if Limited.asked <= 3 else (200, b"{}")
            super().do_GET()

    with (
        http_server(answers=Limited) as port,
        closing(connected(f"http://127.0.0.1:{port}")) as transport,
    ):
        assert transport.metadata("nugraph3") == {}


def test_a_stream_that_has_failed_before_its_request_is_sent_says_why(monkeypatch):
    def slowly(*_of_a_request: object) -> list[object]:
        time.sleep(1)  # the connection is refused meanwhile
        return []

    transport = connected("grpc://127.0.0.1:1")
    monkeypatch.setattr(transport, "_tensors", slowly)
    with pytest.raises(ServerAwayError):
        transport.stream(ServedModel("m", {}, (), {}), {})
