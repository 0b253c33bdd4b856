"""What ``smoke --watch`` exports of what it sees; tests/integration has a real server."""

import errno
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.client import watch
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, Latency, ModelCheck, ServiceCheck
from deploy.client.watch import Target, Watch, found_by
from deploy.host.errors import ClientError, RepositoryError
from numl_formats.watched import Watched
from tests.kit import free_ports, until

URL = "grpcs://triton.example.org:443"
RIGHT = ModelCheck("m", ready=True, latency=Latency(1, 0.25, 0.25))
WRONG = ModelCheck(
    "m", ready=True, error="model m gives wrong answers: output x is empty", wrong=True
)
CHECK = ServiceCheck(URL, ready=True, models=(RIGHT,))
LABELS = f'server="{URL}",model="m"'


def exported(*checks: ServiceCheck) -> list[str]:
    """Return what is exported after checks a minute apart, the last one at 160 s."""
    watched = Watched()
    for number, check in enumerate(checks, start=1 - len(checks)):
        found, now = found_by(check, ["m"]), 160.0 + 60 * number
        watched.record(check.url, found, ready=check.ready, now=now, expires=5e9)
    text = watched.metrics()
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("model", "state"),
    [
        (RIGHT, "right"),
        (WRONG, "wrong"),
        (ModelCheck("m", ready=True, error="Stub process is not healthy"), "failing"),
        (ModelCheck("m", ready=False, error="it is not loaded"), "unready"),
        (ModelCheck("m", ready=True), "unjudged"),
    ],
)
def test_a_model_is_in_one_state(model, state):
    assert model.state == state
    lines = exported(replace(CHECK, models=(model,)))
    found = [line for line in lines if line.startswith("numl_smoke_state") and line.endswith(" 1")]
    assert found == [f'numl_smoke_state{{{LABELS},state="{state}"}} 1']


def test_a_server_that_cannot_be_asked_has_unreachable_models():
    lines = exported(ServiceCheck(URL, error="connection refused"))
    assert f'numl_smoke_state{{{LABELS},state="unreachable"}} 1' in lines
    assert f'numl_smoke_server_ready{{server="{URL}"}} 0' in lines


def test_everything_is_exported():
    others = ("wrong", "failing", "unready", "unjudged", "unreachable")
    assert exported(CHECK, CHECK) == [
        f'numl_smoke_server_ready{{server="{URL}"}} 1',
        f'numl_smoke_last_check_timestamp_seconds{{server="{URL}"}} 160.0',
        f'numl_smoke_certificate_expiry_timestamp_seconds{{server="{URL}"}} 5000000000.0',
        f'numl_smoke_state{{{LABELS},state="right"}} 1',
        *(f'numl_smoke_state{{{LABELS},state="{state}"}} 0' for state in others),
        f'numl_smoke_checks_total{{{LABELS},state="right"}} 2',
        *(f'numl_smoke_checks_total{{{LABELS},state="{state}"}} 0' for state in others),
        f"numl_smoke_latency_seconds{{{LABELS}}} 0.25",
        f"numl_smoke_last_right_timestamp_seconds{{{LABELS}}} 160.0",
    ]


def test_a_wrong_answer_of_a_ready_server_is_wrong_and_leaves_the_last_right_one():
    lines = exported(CHECK, replace(CHECK, models=(WRONG,)))
    assert {
        f'numl_smoke_server_ready{{server="{URL}"}} 1',
        f'numl_smoke_state{{{LABELS},state="wrong"}} 1',
        f'numl_smoke_state{{{LABELS},state="right"}} 0',
        f"numl_smoke_last_right_timestamp_seconds{{{LABELS}}} 100.0",
    } <= {*lines}


def test_a_model_that_never_gave_a_right_answer_is_late_from_the_first_check_on_and_has_no_times():
    lines = exported(replace(CHECK, models=(WRONG,)), replace(CHECK, models=(WRONG,)))
    assert f"numl_smoke_last_right_timestamp_seconds{{{LABELS}}} 100.0" in lines
    assert not any(line.startswith("numl_smoke_latency_seconds") for line in lines)


def test_the_certificate_of_a_server_that_is_gone_is_not_exported():
    watched = Watched()
    watched.record(URL, {}, ready=True, now=1.0, expires=5e9)
    assert "certificate_expiry_timestamp_seconds{" in watched.metrics()
    watched.record(URL, {}, ready=False, now=2.0)
    assert "certificate_expiry_timestamp_seconds{" not in watched.metrics()


def servers_of(watching: Watch) -> set[str]:
    families = text_string_to_metric_families(watching.watched.metrics())
    return {sample.labels["server"] for family in families for sample in family.samples}


def watching(
    urls: Sequence[str] = (), expected: Callable[[], Any] = dict, say: Callable[[str], object] = len
) -> Watch:
    def target() -> Target:
        return Target([Endpoint.parse(url) for url in urls], expected())

    return Watch(target, interval=0.01, timeout=1.0, repeat=1, say=say)


@contextmanager
def running(watch: Watch) -> Iterator[None]:
    thread = threading.Thread(target=watch.run, args=("127.0.0.1", free_ports().http))
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        thread.join()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClientError, match=f"cannot be exported at 127.0.0.1:{port}: Address"):
            watching().run("127.0.0.1", port)


def test_a_repository_that_is_wrong_from_the_beginning_ends_it():
    with pytest.raises(RepositoryError):
        watching(expected=Mock(side_effect=RepositoryError("no model m"))).run("127.0.0.1", 0)


def test_a_fault_of_its_own_ends_it_since_nobody_would_renew_what_it_exports(monkeypatch):
    monkeypatch.setattr(watch, "check_service", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        watching(["http://127.0.0.1:9"]).run("127.0.0.1", 0)


@pytest.mark.parametrize(
    "error",
    [
        RepositoryError("golden.npz: no such file"),
        OSError(errno.ESTALE, "Stale file handle", "golden.npz"),
    ],
    ids=["gone", "on a file system that is away"],
)
def test_a_server_that_hangs_delays_no_other_and_a_file_that_is_gone_keeps_what_was_read(
    error, monkeypatch
):
    hang, reads = threading.Event(), []

    def check(endpoint: Endpoint, *_: object, **__: object) -> ServiceCheck:
        if endpoint.port == 1:
            hang.wait(10)
        return replace(CHECK, url=endpoint.url)

    def expected() -> dict[str, ExpectedModel]:
        reads.append(1)
        if len(reads) > 1:
            raise error
        return {"m": ExpectedModel(None, None)}

    said: list[str] = []
    monkeypatch.setattr(watch, "check_service", check)
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    both = watching(urls, expected=expected, say=said.append)
    with running(both):
        until(lambda: len(reads) > 5, "checks of the one that answers")
        assert servers_of(both) == {urls[1]}
        hang.set()
    (told,) = (text for text in said if "golden.npz" in text)
    assert re.search(r"Z golden.npz: .*[a-z]; what was there before is still watched$", told)


def test_servers_that_come_are_watched_and_those_that_go_are_forgotten(monkeypatch):
    def check(endpoint: Endpoint, *_: object, **__: object) -> ServiceCheck:
        return replace(CHECK, url=endpoint.url)

    monkeypatch.setattr(watch, "check_service", check)
    first, second, third = (f"http://127.0.0.1:{port}" for port in (1, 2, 3))
    there = [first, second]
    several = watching(there, expected=lambda: {"m": ExpectedModel(None, None)})
    with running(several):
        until(lambda: servers_of(several) == {first, second}, "checks of both")
        there[:] = [second, third]
        until(lambda: servers_of(several) == {second, third}, "a check of the new one")
        there[:] = [first, second, third]
        until(lambda: servers_of(several) == {*there}, "a check of the one that is back")
