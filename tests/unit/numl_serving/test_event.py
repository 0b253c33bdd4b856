"""Validation of events: what is refused, with which words, and what is let through."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numl_serving.errors import EventError
from numl_serving.event import Event, empty_event
from numpy.typing import NDArray
from strategies import events, random_event

from numl_formats.contract import UVY, Schema

Tensors = dict[str, NDArray[Any]]

HIT_FLOATS = ("hit_table_local_time", "hit_table_integral", "hit_table_rms")
NAMES = [tensor.name for tensor in UVY.tensors]
WITH_POSITIONS = Schema.of(("u", "v", "y"), positions=True)
POSITIONS = [tensor.name for tensor in WITH_POSITIONS.tensors if tensor.optional]


def valid_tensors(hits: int = 12, spacepoints: int = 5, seed: int = 0) -> Tensors:
    """Writable tensors of a good event."""
    event = random_event(np.random.default_rng(seed), hits, spacepoints)
    return {name: array.copy() for name, array in event.tensors().items()}


def with_positions(tensors: Tensors) -> Tensors:
    rows = len(tensors["spacepoint_table_spacepoint_id"])
    positions = np.arange(3 * rows, dtype=np.float32).reshape(3, rows)
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


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(name):
    tensors = valid_tensors()
    del tensors[name]
    with pytest.raises(EventError, match=f"tensor {name} is missing"):
        Event.from_tensors(tensors)


def test_an_unknown_tensor_is_named():
    with pytest.raises(EventError, match="tensor hit_table_charge is not a column"):
        Event.from_tensors({**valid_tensors(), "hit_table_charge": np.zeros(12, np.float32)})


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_dtype_is_named_with_table_and_column(name):
    tensors = valid_tensors()
    wrong, right = tensors[name].astype(np.float64), tensors[name].dtype
    column = name.replace("table_", "table.", 1)
    with pytest.raises(EventError, match=f"^{column} has dtype float64: expected {right}$"):
        Event.from_tensors({**tensors, name: wrong})


def test_something_else_than_an_array_is_refused():
    tensors = {**valid_tensors(), "hit_table_rms": [1.0, 2.0]}
    with pytest.raises(EventError, match=r"^hit_table\.rms is a list: expected a numpy array$"):
        Event.from_tensors(tensors)


def test_a_second_dimension_is_refused():
    tensors = valid_tensors()
    tensors["hit_table_rms"] = tensors["hit_table_rms"][None]
    with pytest.raises(EventError, match=r"^hit_table\.rms has shape \[1, 12\]"):
        Event.from_tensors(tensors)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("_id")])
def test_a_column_of_another_length_is_named_with_both_lengths(name):
    tensors = valid_tensors()
    rows = len(tensors[name])
    tensors[name] = tensors[name][:-1].copy()
    column = name.replace("table_", "table.", 1)
    with pytest.raises(EventError, match=f"^{column} has {rows - 1} rows but .* has {rows}: "):
        Event.from_tensors(tensors)


@pytest.mark.parametrize("name", HIT_FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(name, value):
    tensors = valid_tensors()
    tensors[name][[7, 9]] = value
    column = name.replace("table_", "table.", 1)
    with pytest.raises(EventError, match=f"^{column} is {value} in row 7: values must be finite$"):
        Event.from_tensors(tensors)


@pytest.mark.parametrize("plane", [-1, 3, 2**31 - 1, -(2**31)])
def test_the_first_row_outside_the_planes_is_named(plane):
    tensors = valid_tensors()
    tensors["hit_table_local_plane"][[4, 5]] = plane
    with pytest.raises(EventError, match=rf"^hit_table\.local_plane is {plane} in row 4: planes"):
        Event.from_tensors(tensors)


def test_an_integral_that_pynuml_drops_is_refused_with_the_reason():
    tensors = valid_tensors()
    tensors["hit_table_integral"][3] = 1.5e6
    with pytest.raises(EventError, match=r"integral is 1\.5e\+06 in row 3: pynuml drops events"):
        Event.from_tensors(tensors)


def test_the_largest_integral_that_pynuml_keeps_is_accepted():
    tensors = valid_tensors()
    tensors["hit_table_integral"][3] = 1e6
    Event.from_tensors(tensors)


def test_huge_but_finite_values_are_accepted():
    tensors = valid_tensors()
    tensors["hit_table_local_time"][0] = np.finfo(np.float32).max
    tensors["hit_table_integral"][0] = np.finfo(np.float32).min
    Event.from_tensors(tensors)


def test_an_incomplete_set_of_positions_is_refused():
    tensors = with_positions(valid_tensors())
    del tensors["spacepoint_table_position_y"]
    with pytest.raises(EventError, match="tensor spacepoint_table_position_y is missing"):
        Event.from_tensors(tensors, WITH_POSITIONS)


def test_a_position_that_is_not_finite_is_named_by_column_and_row():
    tensors = with_positions(valid_tensors())
    tensors["spacepoint_table_position_z"][2] = np.nan
    with pytest.raises(EventError, match=r"^spacepoint_table\.position_z is nan in row 2: "):
        Event.from_tensors(tensors, WITH_POSITIONS)


def test_positions_of_another_length_are_refused():
    tensors = with_positions(valid_tensors())
    tensors["spacepoint_table_position_x"] = np.zeros(4, np.float32)
    with pytest.raises(EventError, match=r"^spacepoint_table\.position_x has 4 rows but .* has 5"):
        Event.from_tensors(tensors, WITH_POSITIONS)


@pytest.mark.parametrize("damage", ["dtype", "length", "nan", "plane", "integral", "missing"])
def test_messages_are_one_line(damage):
    tensors = valid_tensors(hits=500)
    if damage == "dtype":
        tensors["hit_table_rms"] = tensors["hit_table_rms"].astype(np.float16)
    elif damage == "length":
        tensors["hit_table_rms"] = tensors["hit_table_rms"][:3].copy()
    elif damage == "missing":
        del tensors["hit_table_rms"]
    else:
        name, value = {
            "nan": ("hit_table_rms", np.nan),
            "plane": ("hit_table_local_plane", 9),
            "integral": ("hit_table_integral", 2e6),
        }[damage]
        tensors[name][:] = value
    with pytest.raises(EventError) as caught:
        Event.from_tensors(tensors)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160
