"""The client library, as notebooks use it; fakes stand for servers."""

import asyncio
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from deploy.client.registry import Registry
from deploy.events import client as module
from deploy.host.errors import ClientError, DeploymentError, RequestError
from numlkit import AsyncClient, Client, Failure
from tests.certificates import Authority
from tests.inputs import EVENTS
from tests.unit.deploy.events.played import EVENT, MODEL, Fake, Weighted


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(module, "TritonTransport", Fake)


@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        ("noise,signal,label", ["x_noise", "x_signal", "x_label"]),
        ("hit_id,b,b", ["x_hit_id", "b", "x_b"]),
        ("x_score,score,plane", ["x_score", "x_x_score", "x_plane"]),
    ],
)
def test_a_class_that_has_a_columns_name_replaces_none(monkeypatch, classes, columns):
    model = replace(MODEL, parameters={"semantic_classes": classes})
    monkeypatch.setattr(Fake, "describe", lambda *_: model)
    with Client("grpc://one") as client:
        found = client.label(EVENT).columns()
    own = {"hit_id", "plane", "label", "class", "score", "signal", "noise"}
    assert [name for name in found if name not in own] == columns
    assert found["hit_id"].tolist() == [0, 1, 2, 3]
    assert found["label"].tolist() == [0, 1, 2, 0]
    assert found["noise"].tolist() == [True, False, False, False]
    assert [found[name].tolist() for name in columns] == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_an_event_becomes_a_table_of_its_hits(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with Client("grpc://one", "grpc://two") as client:
        labelled = client.label(EVENT)
    table = labelled.table()
    assert table.dtype.names == (
        *("hit_id", "plane", "label", "class", "score", "a", "b", "c", "signal", "noise"),
    )
    assert table["class"].tolist() == ["a", "b", "c", "a"]
    assert table["noise"].tolist() == [True, False, False, False]
    assert labelled.event_scores() == pytest.approx({"p": 0.9, "q": 0.1})
    assert len(labelled.display().axes) == 3


def test_a_client_that_is_closed_ends_what_it_labels_and_no_other_run():
    with Client("grpc://one") as other:
        client = Client("grpc://one")
        runs = [each.label_all(repeat(EVENT, 300)) for each in (client, other)]
        for each in runs:
            next(each)
        client.close()
        with pytest.raises(ClientError, match="the client was closed"):
            next(runs[0])
        assert len(list(other.label_all([EVENT]))) == 1
        assert len(list(runs[1])) == 299
        with pytest.raises(ClientError, match="the client was closed"):
            next(client.label_all([EVENT]))


def test_a_client_may_be_closed_at_its_last_answer():
    client = Client("grpc://one")
    for _ in client.label_all([EVENT]):
        client.close()


def test_what_waits_when_a_client_is_closed_ends_in_its_own_error(monkeypatch):
    began, goes_on = threading.Event(), threading.Event()

    def infer(*_: Any) -> Any:
        began.set()
        goes_on.wait()
        raise RequestError("refused")

    monkeypatch.setattr(Fake, "infer", infer)
    client = Client("grpc://one", concurrency=1)
    asked = [client._submit(EVENT) for _ in range(2)]
    with ThreadPoolExecutor() as other:
        began.wait()
        other.submit(client.close)
        client._stopped.wait()
        goes_on.set()
    errors = {str(each.exception()): type(each.exception()) for each in asked}
    assert errors == {"refused": RequestError, "the client is closed": ClientError}
    with pytest.raises(ClientError, match="the client is closed"):
        client.label(EVENT)


def test_a_client_does_not_wait_in_another_process_for_threads_it_has_not():
    with Client("grpc://one") as client:
        client.label(EVENT)
        child = os.fork()
        if not child:
            try:
                signal.alarm(10)
                client.label(EVENT)
            except ClientError:
                os._exit(3)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_asyncio_gets_the_same_answers():
    async def ask() -> list[tuple[int, int, int]]:
        async with AsyncClient("grpc://one", concurrency=2) as client:
            events = list(Client("grpc://one").read(EVENTS))
            one = await client.label(events[0])
            return [one.event_id, *[each.event_id async for each in client.label_all(events)]]

    with Client("grpc://one") as client:
        ids = [event.event_id for event in client.read(EVENTS)]
    assert asyncio.run(ask()) == [ids[0], *ids]


def test_a_job_finds_its_own_server(monkeypatch):
    monkeypatch.setenv("NUML_GRPC_URL", "grpc://127.0.0.1:7,grpc://127.0.0.1:8")
    with Client() as client:
        assert client.url == "grpc://127.0.0.1:7, grpc://127.0.0.1:8"


def test_one_of_several_servers_may_be_away_at_the_start_but_not_all():
    with Client("grpc://127.0.0.1:1", "grpc://two") as client:
        assert client.label(EVENT).labels.event.hits == 4
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        Client("grpc://127.0.0.1:1")


@pytest.fixture
def weighted(monkeypatch):
    monkeypatch.setattr(module, "TritonTransport", Weighted)
    monkeypatch.setattr(Weighted, "weights", {"one": "a", "two": "a"})
    monkeypatch.setattr(Weighted, "restarts", {})
    return Weighted


def test_servers_with_other_weights_do_not_label_in_one_run(weighted):
    with Client("grpc://one", "grpc://two") as client:
        assert client.label(EVENT).labels.event.hits == 4
    weighted.weights["two"] = "b"
    with Client("grpc://one", "grpc://two", concurrency=1) as client:
        found = list(client.label_all([EVENT] * 20))
    failures = {each.reason for each in found if isinstance(each, Failure)}
    [reason] = failures
    assert re.fullmatch(
        r"grpc://(one|two):8001 serves other weights than nugraph3 had before", reason
    )


def test_a_server_that_returns_with_other_weights_labels_no_more(weighted):
    with Client("grpc://one", concurrency=1) as client:
        weighted.restarts["one"] = "a"
        assert client.label(EVENT).labels.event.hits == 4
        weighted.restarts["one"] = "b"
        with pytest.raises(ClientError, match="grpc://one:8001 serves other weights"):
            client.label(EVENT)


def test_servers_that_do_not_say_their_weights_label_as_any(weighted):
    weighted.weights.clear()
    with Client("grpc://one", "grpc://two") as client:
        assert client.label(EVENT).labels.event.hits == 4
        weighted.weights["one"] = weighted.weights["two"] = "b"
        assert client.label(EVENT).labels.event.hits == 4


def test_an_event_without_a_column_that_every_model_needs_is_refused():
    with Client("grpc://one") as client, pytest.raises(RequestError, match="hit_table_hit_id"):
        client.label({"local_plane": [0]})


def test_the_package_is_typed():
    import numlkit

    assert (Path(numlkit.__file__).parent / "py.typed").exists()


def test_a_folder_of_servers_is_followed(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_LOOK_S", 0)
    asked: list[str] = []
    infer = Fake.infer

    def note(fake: Fake, *request: Any) -> dict[str, Any]:
        asked.append(fake.endpoint.url)
        return infer(fake, *request)

    monkeypatch.setattr(Fake, "infer", note)
    registry = Registry(tmp_path)
    old = registry.enter("grpc://old:1001")
    monkeypatch.chdir(tmp_path.parent)
    with Client(servers=Path(tmp_path.name)) as client:
        monkeypatch.chdir("/")  # as a notebook may

        def asks() -> set[str]:
            asked.clear()
            for _ in range(20):
                client.label(EVENT)
            return set(asked)

        assert asks() == {"grpc://old:1001"}
        (tmp_path / "broken.json").write_text('{"url": "grpc://new: 1", "replaces": ""}')
        new = registry.enter("grpc://new:1001")
        assert asks() == {"grpc://old:1001", "grpc://new:1001"}
        registry.leave(old)
        assert asks() == {"grpc://new:1001"}
        registry.leave(new)
        assert asks() == {"grpc://new:1001"}  # none is named: those known before


def test_a_server_without_tls_is_refused_at_the_start_and_ignored_later(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_LOOK_S", 0)
    ca = Authority(tmp_path, "site").file
    registry = Registry(tmp_path / "servers")
    plain = registry.enter("grpc://plain:1001")
    with pytest.raises(DeploymentError, match="grpc://plain:1001 is without TLS"):
        Client(servers=registry.folder, ca=ca)
    registry.leave(plain)
    registry.enter("grpcs://safe:1001")
    with Client(servers=registry.folder, ca=ca) as client:
        registry.enter("grpc://plain:1001")
        for _ in range(20):
            client.label(EVENT)
        assert client.url == "grpcs://safe:1001"
