"""Validation of events: what is refused, with which words, and what is let through."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numl_serving.errors import EventError
from numl_serving.event import Event, empty_event
from numpy.typing import NDArray
from small_models import random_event
from strategies import events

from numl_formats.contract import UVY, Schema

Tensors = dict[str, NDArray[Any]]

HIT_FLOATS = ("hit_table_local_time", "hit_table_integral", "hit_table_rms")
NAMES = [tensor.name for tensor in UVY.tensors]
WITH_POSITIONS = Schema.of(("u", "v", "y"), positions=True)
POSITIONS = [tensor.name for tensor in WITH_POSITIONS.tensors if tensor.optional]


def valid_tensors() -> Tensors:
    """Writable tensors of a good event."""
    event = random_event(0, 13)
    return {name: array.copy() for name, array in event.tensors().items()}


def with_positions(tensors: Tensors) -> Tensors:
    positions = np.arange(15, dtype=np.float32).reshape(3, 5)
    return {**tensors, **dict(zip(POSITIONS, positions, strict=True))}


def test_the_tensors_are_those_of_the_wire_contract():
    assert [(tensor.name, tensor.dtype.name) for tensor in UVY.tensors] == [
        ("hit_table_hit_id", "int32"),
        ("hit_table_local_plane", "int32"),
        ("hit_table_local_time", "float32"),
        ("hit_table_local_wire", "int32"),
        ("hit_table_integral", "float32"),
        ("hit_table_rms", "float32"),
        ("spacepoint_table_spacepoint_id", "int32"),
        ("spacepoint_table_hit_id_u", "int32"),
        ("spacepoint_table_hit_id_v", "int32"),
        ("spacepoint_table_hit_id_y", "int32"),
    ]


def test_planes_and_features_make_the_columns():
    schema = Schema.of(("a", "b"), ("integral", "tpc", "goodness"), positions=True)
    names = {tensor.name: tensor.dtype.name for tensor in schema.tensors}
    assert names["hit_table_tpc"] == "int32"
    assert names["hit_table_goodness"] == "float32"
    assert [name for name in names if "hit_id_" in name] == [
        "spacepoint_table_hit_id_a",
        "spacepoint_table_hit_id_b",
    ]
    assert [name for name in names if "position" in name] == POSITIONS


@given(events())
def test_tensors_of_an_event_make_the_same_event(event):
    again = Event.from_tensors(event.tensors()).tensors()
    assert list(again) == list(event.tensors())
    for name, array in event.tensors().items():
        np.testing.assert_array_equal(again[name], array)


def test_positions_survive_the_way_through_an_event():
    tensors = with_positions(valid_tensors())
    event = Event.from_tensors(tensors, WITH_POSITIONS)
    assert event.position().shape == (5, 3)
    for axis, name in enumerate(POSITIONS):
        np.testing.assert_array_equal(event.tensors()[name], tensors[name])
        np.testing.assert_array_equal(event.position()[:, axis], tensors[name])


def test_an_event_without_positions_has_zeros():
    event = Event.from_tensors(valid_tensors(), WITH_POSITIONS)
    assert not event.has_positions
    np.testing.assert_array_equal(event.position(), np.zeros((5, 3)))


def test_an_event_without_hits_and_spacepoints_is_valid():
    event = empty_event(UVY)
    assert (event.num_hits, event.num_spacepoints, event.has_positions) == (0, 0, False)


def test_columns_are_read_only_and_not_copied():
    tensors = valid_tensors()
    event = Event.from_tensors(tensors)
    assert np.shares_memory(event.hit("local_time"), tensors["hit_table_local_time"])
    with pytest.raises(ValueError, match="read-only"):
        event.hit("local_time")[0] = 1
    tensors["hit_table_local_time"][0] = 1  # the caller's array keeps its flags


def test_strided_columns_become_contiguous():
    tensors = valid_tensors()
    tensors["hit_table_rms"] = np.repeat(tensors["hit_table_rms"], 2)[::2]
    assert Event.from_tensors(tensors).hit("rms").flags.c_contiguous


def column(name: str) -> str:
    return name.replace("table_", "table.", 1)


def put(value: float, *rows: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        array[list(rows)] = value
        return array

    return change


def shorter(name: str) -> tuple[str, Any, str]:
    hits = name.startswith("hit_table")
    first, rows = ("hit_table.hit_id", 13) if hits else ("spacepoint_table.spacepoint_id", 5)
    said = f"{column(name)} has {rows - 1} rows but {first} has {rows}: all columns of a table must"
    return name, lambda array: array[:-1], said


REFUSED: list[tuple[str, Any, str]] = [
    *((name, None, f"tensor {name} is missing: an event needs all of its") for name in NAMES),
    (POSITIONS[1], None, f"tensor {POSITIONS[1]} is missing: send all three positions or none"),
    ("hit_table_charge", np.copy, "tensor hit_table_charge is not a column of this model: remove"),
    *(
        (t.name, np.complex64, f"{column(t.name)} has dtype complex64: expected {t.dtype}")
        for t in UVY.tensors
    ),
    ("hit_table_rms", list, "hit_table.rms is a list: expected a numpy array"),
    ("hit_table_rms", np.atleast_2d, "hit_table.rms has shape [1, 13]: expected one dimension"),
    *(shorter(name) for name in (*NAMES, POSITIONS[0]) if not name.endswith("_id")),
    *(
        (name, put(value, 7, 9), f"{column(name)} is {value} in row 7: values must be finite")
        for name in HIT_FLOATS
        for value in (np.nan, np.inf, -np.inf)
    ),
    (POSITIONS[2], put(np.nan, 2), "spacepoint_table.position_z is nan in row 2: values must be"),
    *(
        (
            "hit_table_local_plane",
            put(plane, 4, 5),
            f"hit_table.local_plane is {plane} in row 4: planes are 0 (u), 1 (v) and 2 (y)",
        )
        for plane in (-1, 3, 2**31 - 1, -(2**31))
    ),
    ("hit_table_integral", put(1.5e6, 3), "hit_table.integral is 1.5e+06 in row 3: pynuml drops"),
]


@pytest.mark.parametrize(("name", "change", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_is_wrong_is_told_in_a_short_line_that_names_it(name, change, said):
    tensors = with_positions(valid_tensors())
    found = tensors.pop(name, np.zeros(13, np.float32))
    if change is not None:
        tensors[name] = change(found)
    with pytest.raises(EventError) as caught:
        Event.from_tensors(tensors, WITH_POSITIONS)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


FLOAT32 = np.finfo(np.float32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hit_table_integral", 1e6),  # the largest that pynuml keeps
        ("hit_table_integral", FLOAT32.min),
        ("hit_table_local_time", FLOAT32.max),
    ],
)
def test_a_value_at_its_limit_is_accepted(name, value):
    tensors = valid_tensors()
    tensors[name][3] = value
    Event.from_tensors(tensors)
