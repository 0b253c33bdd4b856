"""What probes and Prometheus are told."""

import urllib.error
import urllib.request
from datetime import datetime, timezone

import pytest
from numl_sync.errors import UsageError
from numl_sync.status import Status, serve_status
from numl_sync.trust import Accepted
from prometheus_client.parser import text_string_to_metric_families

from numl_formats.trust import Seen
from tests.kit import free_ports

MADE = datetime(2026, 11, 24, tzinfo=timezone.utc)
ENDS = datetime(2026, 12, 24, tzinfo=timezone.utc)


def test_prometheus_reads_the_figures():
    status = Status(release=3, published_release=4, refused=True, last_success=1.5, verifies=True)
    status.failures["bucket"] = 7
    status.refused_statements["replay"] = 2
    status.statement = Accepted("key", "s3://bucket", Seen("0" * 16, 12, "0" * 64), MADE, ENDS)
    found = {
        sample.name + "".join(sample.labels.values()): (family.type, sample.value)
        for family in text_string_to_metric_families(status.metrics())
        for sample in family.samples
    }
    assert found == {
        "numl_sync_release": ("gauge", 3),
        "numl_sync_published_release": ("gauge", 4),
        "numl_sync_refused": ("gauge", 1),
        "numl_sync_verifies": ("gauge", 1),
        "numl_sync_last_success_timestamp_seconds": ("gauge", 1.5),
        "numl_sync_statement_sequence": ("gauge", 12),
        "numl_sync_statement_created_timestamp_seconds": ("gauge", MADE.timestamp()),
        "numl_sync_statement_expires_timestamp_seconds": ("gauge", ENDS.timestamp()),
        "numl_sync_failures_totalbucket": ("counter", 7),
        "numl_sync_failures_totalrelease": ("counter", 0),
        "numl_sync_failures_totalfolder": ("counter", 0),
        "numl_sync_refused_statements_totalformat": ("counter", 0),
        "numl_sync_refused_statements_totalsignature": ("counter", 0),
        "numl_sync_refused_statements_totalline": ("counter", 0),
        "numl_sync_refused_statements_totalreplay": ("counter", 2),
        "numl_sync_refused_statements_totalexpired": ("counter", 0),
    }


def test_what_is_not_known_yet_has_no_figure():
    text = Status().metrics()
    assert "timestamp" not in text
    assert "statement_sequence" not in text


def test_it_is_ready_when_a_release_is_in_the_folder():
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
