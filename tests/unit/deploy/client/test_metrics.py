import pytest

from deploy.client.metrics import ModelCounts, fetch_counts, read_counts
from deploy.host.errors import LaunchError
from tests.unit.deploy.client.servers import raw_server

# As Triton 24.10 writes it.
TEXT = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="nugraph3",version="1"} 8
nv_inference_request_success{model="nugraph2",version="1"} 0
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="nugraph3",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="nugraph3",reason="BACKEND",version="1"} 2
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 1
# HELP nv_inference_request_summary_us Summary of inference request latencies in microseconds
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="nugraph3",version="1"} 8
nv_inference_request_summary_us_sum{model="nugraph3",version="1"} 271655
nv_inference_request_summary_us{model="nugraph3",version="1",quantile="0.5"} 22578
nv_inference_request_summary_us{model="nugraph3",version="1",quantile="0.99"} 41864
nv_inference_request_summary_us{model="nugraph2",version="1",quantile="0.5"} nan
nv_inference_request_summary_us{model="nugraph2",version="1",quantile="0.99"} nan
"""


def test_requests_failures_and_quantiles_are_read_by_model():
    assert read_counts(TEXT) == {
        "nugraph2": ModelCounts(requests=0, failures=0, p50=None, p99=None),
        "nugraph3": ModelCounts(requests=8, failures=3, p50=0.022578, p99=0.041864),
    }


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnv_cpu",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"",
    ],
    ids=["breaks off", "no HTTP", "too many headers", "nothing"],
)
def test_an_answer_that_breaks_off_or_is_no_http_is_told_in_a_line(answer):
    with raw_server(answer) as port:
        said = f"no metrics from http://127.0.0.1:{port}/metrics: ."
        with pytest.raises(LaunchError, match=said) as told:
            fetch_counts(f"127.0.0.1:{port}", timeout=10)
    assert "\n" not in told.value.cause


def test_a_server_that_is_away_is_named():
    # Port 1 is reserved; nothing listens there.
    with pytest.raises(LaunchError, match="no metrics from http://127"):
        fetch_counts("127.0.0.1:1", timeout=1)
