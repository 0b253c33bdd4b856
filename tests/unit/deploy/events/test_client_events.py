"""What the client library takes for an event, and what it says of one that is none."""

import re
import shutil
from itertools import chain
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from deploy.events import client as module
from deploy.events.tables import EventFileError
from deploy.host.errors import KitError, RequestError
from numlkit import Client, Failure, Labelled
from tests.inputs import EVENTS
from tests.unit.deploy.events.played import EVENT, Fake


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(module, "TritonTransport", Fake)
    with Client("grpc://one") as client:
        yield client


def test_an_event_that_cannot_be_read_or_is_refused_fails_alone_in_its_place(client, tmp_path):
    path = tmp_path / "bad.h5"
    shutil.copy(EVENTS, path)
    with h5py.File(path, "r+") as file:
        second = file["event_table/event_id"][1]
        row = np.flatnonzero((file["hit_table/event_id"][:] == second).all(axis=1))[0]
        wires = file["hit_table/local_wire"][:].astype(float)
        wires[row] = np.nan
        del file["hit_table/local_wire"]
        file["hit_table/local_wire"] = wires
    events = list(client.read(path))
    refused = {**EVENT, "integral": np.full(4, 2e6, np.float32)}
    *found, last = client.label_all([*events, refused], progress=True)
    with pytest.raises(RequestError, match="not an int32"):
        client.label(events[1])
    assert [each.event_id for each in found] == [each.event_id for each in events]
    assert [each for each in found if isinstance(each, Failure)] == [events[1]] == [found[1]]
    assert "local_wire row 0 of the event is nan: not an int32" in found[1].reason
    assert last == Failure((0, 0, 0), "", "hit_table/integral row 0 is 2e+06: above 1e6")


def test_what_cannot_be_opened_is_told_after_the_answers_before_it(client, tmp_path):
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
        (None, "an event is a mapping of columns by their names, not NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_as_it_is_fails_alone(client, columns, reason):
    bad = columns and {**EVENT, **columns}
    first, failure, last = client.label_all([EVENT, bad, EVENT])
    assert isinstance(first, Labelled)
    assert isinstance(last, Labelled)
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(reason)
    with pytest.raises(RequestError, match=re.escape(reason)):
        client.label(bad)


def test_a_mapping_is_sent_as_the_same_columns_of_a_file_would_be(client, monkeypatch):
    sent: dict[str, Any] = {}
    monkeypatch.setattr(Fake, "infer", lambda _, model, tensors: sent.update(tensors))
    given = {
        "hit_id": [0.0, 1.0], "local_plane": [True, False], "local_wire": np.array([3, 4], "u8"),
        "local_time": [1, 2], "integral": [0.5, 1], "rms": (), _IDS: [np.nan, 1.0],
        "more": [1.5, 2],
    }  # fmt: skip
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


def test_an_unforeseen_fault_of_one_event_is_an_error_of_the_kit(client, monkeypatch):
    monkeypatch.setattr(Fake, "infer", Mock(side_effect=ZeroDivisionError("division\nby zero")))
    with pytest.raises(KitError, match=r"^ZeroDivisionError: division by zero$"):
        client.label(EVENT)
    [failure] = client.label_all([EVENT])
    assert failure == Failure((0, 0, 0), "", "ZeroDivisionError: division by zero", refused=False)
