"""The client library, as notebooks use it; fakes stand for servers."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

from deploy.client.endpoint import Endpoint
from deploy.client.registry import Registry
from deploy.client.transport import ServedModel
from deploy.events import client as module
from deploy.events.tables import EventFileError
from deploy.host.errors import (
    ClientError,
    DeploymentError,
    KitError,
    RequestError,
    ServerAwayError,
)
from deploy.host.paths import CHECKOUT
from numl_formats.contract import INPUTS
from numlkit import AsyncClient, Client, Failure, Labelled
from tests.certificates import Authority

EVENTS = CHECKOUT / "scripts/data/demo_events.h5"
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
    monkeypatch.setitem(sys.modules, "pandas", None)  # type: ignore[arg-type]
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


def test_the_events_of_a_file_are_labelled_in_their_order():
    with Client("grpc://one") as client:
        events = list(client.read(EVENTS))
        bad = {**EVENT, "integral": np.full(4, 2e6, np.float32)}
        found = list(client.label_all([*events, bad], progress=True))
    ids = [each.event_id for each in found if isinstance(each, Labelled)]
    assert ids == [event.event_id for event in events]
    assert [each.reason for each in found if isinstance(each, Failure)] == [
        "hit_table/integral row 0 is 2e+06: above 1e6"
    ]


@pytest.fixture
def with_a_bad_event(tmp_path):
    """Return a file whose second event cannot be read."""
    path = tmp_path / "bad.h5"
    shutil.copy(EVENTS, path)
    with h5py.File(path, "r+") as file:
        second = file["event_table/event_id"][1]
        row = np.flatnonzero((file["hit_table/event_id"][:] == second).all(axis=1))[0]
        wires = file["hit_table/local_wire"][:].astype(float)
        wires[row] = np.nan
        del file["hit_table/local_wire"]
        file["hit_table/local_wire"] = wires
    return path


def test_an_event_that_cannot_be_read_fails_alone(with_a_bad_event):
    with Client("grpc://one") as client:
        events = list(client.read(with_a_bad_event))
        found = list(client.label_all(client.read(with_a_bad_event)))
        bad = events[1]
        assert isinstance(bad, Failure)
        with pytest.raises(RequestError, match="not an int32"):
            client.label(bad)
    assert [isinstance(each, Failure) for each in found] == [
        number == 1 for number in range(len(events))
    ]
    assert [each.event_id for each in found] == [each.event_id for each in events]
    assert found[1] == bad
    assert "local_wire row 0 of the event is nan: not an int32" in bad.reason


def test_what_cannot_be_opened_is_told_after_the_answers_before_it(tmp_path):
    with Client("grpc://one") as client:
        events = chain(client.read(EVENTS), client.read(tmp_path / "none.h5"))
        found = []
        with pytest.raises(EventFileError, match="no such file"):
            found.extend(client.label_all(events))
        assert len(found) == len(list(client.read(EVENTS)))


_IDS = "spacepoint_table_hit_id_u"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"local_wire": [1, 2, 10.7, 4]}, "hit_table_local_wire row 2 of the event is 10.7: not "
         "an int32"),
        ({"hit_id": [0, 1, 2, 2**32]}, "hit_table_hit_id row 3 of the event is 4294967296: not an "
         "int32"),
        ({"hit_id": [0, np.nan, 2, 3]}, "hit_table_hit_id row 1 of the event is nan: not an int32"),
        ({"integral": ["a", "b", "c", "d"]}, "hit_table_integral holds <U1, not numbers"),
        ({_IDS: [None]}, f"{_IDS} holds object, not numbers"),
        ({"rms": 3.0}, "hit_table_rms has the shape [], not one number for each row"),
        ({"rms": np.ones((4, 1))}, "hit_table_rms has the shape [4, 1], not one number for each "
         "row"),
        ({"rms": [[1], [1, 2], 3, 4]}, "hit_table_rms: ValueError: setting an array element with"),
        ({7: [0, 1, 2, 3]}, "an event is a mapping of columns by their names, not of int"),
    ],
)  # fmt: skip
def test_a_mapping_that_cannot_be_sent_as_it_is_fails_alone(columns, reason):
    bad = {**EVENT, **columns}
    with Client("grpc://one") as client:
        first, failure, last = client.label_all([EVENT, bad, EVENT])
        assert isinstance(first, Labelled)
        assert isinstance(last, Labelled)
        assert isinstance(failure, Failure)
        assert failure.reason.startswith(reason)
        with pytest.raises(RequestError, match=re.escape(reason)):
            client.label(bad)


def test_what_is_no_event_fails_alone():
    with Client("grpc://one") as client:
        failure, labelled = client.label_all([None, EVENT])  # type: ignore[list-item]
        assert isinstance(labelled, Labelled)
        assert isinstance(failure, Failure)
        assert failure.reason == "an event is a mapping of columns by their names, not NoneType"


def test_a_mapping_is_sent_as_the_same_columns_of_a_file_would_be(monkeypatch):
    sent: dict[str, Any] = {}
    monkeypatch.setattr(Fake, "infer", lambda _, model, tensors: sent.update(tensors))
    given = {
        "hit_id": [0.0, 1.0], "local_plane": [True, False], "local_wire": np.array([3, 4], "u8"),
        "local_time": [1, 2], "integral": [0.5, 1], "rms": (), _IDS: [np.nan, 1.0],
        "more": [1.5, 2],
    }  # fmt: skip
    with Client("grpc://one") as client:
        list(client.label_all([given]))
    assert {name: (each.dtype, each.tolist()) for name, each in sent.items()} == {
        "hit_table_hit_id": (np.int32, [0, 1]),
        "hit_table_local_plane": (np.int32, [1, 0]),
        "hit_table_local_wire": (np.int32, [3, 4]),
        "hit_table_local_time": (np.float32, [1, 2]),
        "hit_table_integral": (np.float32, [0.5, 1]),
        "hit_table_rms": (np.float32, []),
        _IDS: (np.int32, [-1, 1]),
        "hit_table_more": (np.float64, [1.5, 2]),
    }


def test_an_unforeseen_fault_of_one_event_is_an_error_of_the_kit(monkeypatch):
    def stumble(*request: Any) -> dict[str, Any]:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(Fake, "infer", stumble)
    with Client("grpc://one") as client:
        with pytest.raises(KitError, match=r"^ZeroDivisionError: division by zero$"):
            client.label(EVENT)
        [failure] = client.label_all([EVENT])
    assert failure == Failure((0, 0, 0), "", "ZeroDivisionError: division by zero", refused=False)


def test_a_client_that_is_closed_ends_what_it_labels_and_no_other_client():
    with Client("grpc://one") as other:
        client = Client("grpc://one")
        runs = [each.label_all(repeat(EVENT, 300)) for each in (client, other)]
        for each in runs:
            next(each)
        client.close()
        with pytest.raises(ClientError, match="the client was closed"):
            next(runs[0])
        assert len(list(runs[1])) == 299
        with pytest.raises(ClientError, match="the client was closed"):
            next(client.label_all([EVENT]))


def test_a_client_may_be_closed_at_its_last_answer():
    client = Client("grpc://one")
    for _ in client.label_all([EVENT]):
        client.close()


def test_one_of_two_runs_of_a_client_may_end_before_the_other():
    with Client("grpc://one") as client:
        longer = client.label_all([EVENT] * 30)
        next(longer)
        assert len(list(client.label_all([EVENT]))) == 1
        assert len(list(longer)) == 29


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


class Weighted(Fake):
    """Servers with weights, by their hosts; one that restarts may have others then."""

    weights: ClassVar[dict[str, str]] = {}
    restarts: ClassVar[dict[str, str]] = {}

    def parameters(self, model: str) -> dict[str, str]:
        found = self.weights.get(self.endpoint.host)
        return {**NAMES, **({"weights_sha256": found} if found else {})}

    def describe(self, model: str) -> ServedModel:
        return replace(MODEL, parameters=self.parameters(model))

    def infer(self, *request: Any) -> dict[str, Any]:
        host = self.endpoint.host
        if host in self.restarts:
            self.weights[host] = self.restarts.pop(host)
            raise ServerAwayError(f"{self.endpoint.url}: refused")
        return super().infer(*request)


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
    with Client(servers=tmp_path) as client:

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
