"""What probes and Prometheus are told."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from numl_sync.errors import UsageError
from numl_sync.status import Status, serve_status
from prometheus_client.parser import text_string_to_metric_families

from tests.kit import free_ports


def test_prometheus_reads_the_figures() -> None:
    status = Status(release=3, published_release=4, refused=True, last_success=1.5)
    status.failures["bucket"] = 7
    found = {
        sample.name + "".join(sample.labels.values()): (family.type, sample.value)
        for family in text_string_to_metric_families(status.metrics())
        for sample in family.samples
    }
    assert found == {
        "numl_sync_release": ("gauge", 3),
        "numl_sync_published_release": ("gauge", 4),
        "numl_sync_refused": ("gauge", 1),
        "numl_sync_last_success_timestamp_seconds": ("gauge", 1.5),
        "numl_sync_failures_totalbucket": ("counter", 7),
        "numl_sync_failures_totalrelease": ("counter", 0),
        "numl_sync_failures_totalfolder": ("counter", 0),
    }


def test_it_is_ready_when_a_release_is_in_the_folder() -> None:
    status, port = Status(), free_ports().http
    serve_status(status, "127.0.0.1", port)
    assert get(port, "/ready") == (503, "no release yet\n")
    status.in_folder = True
    assert get(port, "/ready") == (200, "ready\n")
    assert get(port, "/metrics") == (200, status.metrics())
    assert get(port, "/") == (404, "/metrics or /ready\n")
    for wrong in (port, 99_999):
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {wrong}: "):
            serve_status(status, "127.0.0.1", wrong)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
