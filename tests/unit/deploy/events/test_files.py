"""Reading events: pynuml's layout, pandas' layouts, and files that are wrong."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.events import files as events_module
from deploy.events import grouping
from deploy.events.files import EventFile
from deploy.events.tables import EventFileError, pickled_names
from deploy.events.truth import TRUE_COLUMNS, truth_of
from numl_formats.contract import INPUTS
from tests.unit.deploy.events.written import Columns, EventId, make_event, write_pynuml

DATA = Path(__file__).parent / "data"
HIT_COLUMNS = [n.removeprefix("hit_table_") for n in INPUTS if n.startswith("hit_table_")]
POSITION = {f"spacepoint_table_position_{axis}": "FP32" for axis in "xyz"}


def read_all(path: Path) -> list[tuple[EventId, dict[str, list[float]]]]:
    with EventFile(path) as file:
        return [
            (event.event_id, {k: v.tolist() for k, v in event.tensors.items()})
            for event in map(file.read, range(len(file)))
        ]


def expected(event_id: EventId, hits: Columns, spacepoints: Columns) -> Any:
    tensors = {f"hit_table_{k}": v.tolist() for k, v in hits.items()}
    tensors["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"].tolist()
    for i, plane in enumerate("uvy"):
        tensors[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, i].tolist()
    return event_id, tensors


# A test writes over its file, so one folder serves all its examples.
with_files = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
event_sizes = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=6)


@settings(with_files, max_examples=30)
@given(event_sizes, st.sampled_from([{}, {"sequence": False}, {"ids": False}]))
def test_what_was_written_is_read(tmp_path, sizes, without):
    events = [((7, 1, i), *make_event(h, s, i)) for i, (h, s) in enumerate(sizes)]
    write_pynuml(tmp_path / "a.h5", events, **without)
    assert read_all(tmp_path / "a.h5") == [expected(*e) for e in events]


@with_files
@given(event_sizes, st.randoms(use_true_random=False), st.sampled_from([3, 1 << 20]))
def test_interleaved_rows_go_to_their_events_in_file_order(tmp_path, sizes, random, chunk):
    events = [((7, 1, i), *make_event(h, s, i)) for i, (h, s) in enumerate(sizes)]
    owners = np.repeat(np.arange(len(sizes)), [h for h, _ in sizes])
    order = np.array(random.sample(range(len(owners)), len(owners)), dtype=np.int64)
    # Its counts still add up; only event_id tells that the rows are not in blocks.
    write_pynuml(tmp_path / "a.h5", events, order=order, sequence=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_CHUNK_ROWS", chunk)
        patch.setattr(events_module, "_GAP_ROWS", chunk)
        got = read_all(tmp_path / "a.h5")
    for i, (event_id, hits, spacepoints) in enumerate(events):
        first = int(np.flatnonzero(owners == i)[0]) if (owners == i).any() else 0
        rows = order[owners[order] == i] - first
        shuffled = {name: column[rows] for name, column in hits.items()}
        assert got[i] == expected(event_id, shuffled, spacepoints)


def test_the_index_tells_events_with_the_same_id_apart_also_where_their_truth_is_read(tmp_path):
    ids = [(1, 1, 1), (1, 1, 1), (1, 1, 2)]
    events = [(each, *make_event(4 + i, 2, i)) for i, each in enumerate(ids)]
    write_pynuml(tmp_path / "a.h5", events)
    assert read_all(tmp_path / "a.h5") == [expected(*e) for e in events]
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["event_table/is_cc"], file["event_table/nu_pdg"] = [[1], [0], [1]], [[12], [14], [14]]
    with EventFile(tmp_path / "a.h5", also=TRUE_COLUMNS) as opened:
        assert opened.event_ids == tuple(ids)
        read = [opened.read(i) for i in range(3)]
    assert [event.hits for event in read] == [4, 5, 6]
    assert [truth_of(event).event for event in read] == [0, 3, 1]


def test_an_index_that_contradicts_the_ids_is_not_believed(tmp_path):
    events = [((1, 1, i), *make_event(4, 2, i)) for i in range(2)]
    write_pynuml(tmp_path / "a.h5", events)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["hit_table/event_id.seq_cnt"][...] = [[0, 3], [1, 5]]
    assert read_all(tmp_path / "a.h5") == [expected(*e) for e in events]


def test_a_wrong_index_without_ids_is_an_error(tmp_path):
    write_pynuml(tmp_path / "a.h5", [((1, 1, 1), *make_event(4, 2))], ids=False)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["hit_table/event_id.seq_cnt"][...] = [[0, 3]]
    with pytest.raises(EventFileError, match=r"a\.h5: hit_table/event_id\.seq_cnt contradicts"):
        EventFile(tmp_path / "a.h5")


def test_flat_columns_with_run_subrun_and_event_are_read_and_nan_is_no_hit(tmp_path):
    hits, spacepoints = make_event(4, 2)
    spacepoints["hit_id"] = np.array([[0, -1, 1], [2, 3, -1]])
    stored = np.where(spacepoints["hit_id"] < 0, np.nan, spacepoints["hit_id"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in hits.items():
            file[f"hit_table/{name}"] = values
        file["spacepoint_table/spacepoint_id"] = spacepoints["spacepoint_id"]
        for i, plane in enumerate("uvy"):
            file[f"spacepoint_table/hit_id_{plane}"] = stored[:, i]
        for table, rows in (("hit_table", 4), ("spacepoint_table", 2)):
            for i, key in enumerate(("run", "subrun", "event")):
                file[f"{table}/{key}"] = np.full(rows, 5 + i)
    assert read_all(tmp_path / "a.h5") == [expected((5, 6, 7), hits, spacepoints)]


def test_a_compound_dataset_is_a_table(tmp_path):
    hits, spacepoints = make_event(4, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, columns in (("hit_table", hits), ("spacepoint_table", spacepoints)):
            fields = [(k, v.dtype, v.shape[1:]) for k, v in columns.items()]
            rows = np.empty(len(next(iter(columns.values()))), dtype=fields)
            for key, values in columns.items():
                rows[key] = values
            file[name] = rows
    assert read_all(tmp_path / "a.h5") == [expected((0, 0, 0), hits, spacepoints)]


PANDAS = {
    "hit_table_hit_id": [0, 1, 2, 3, 4, 5],
    "hit_table_local_plane": [0, 1, 2, 0, 1, 2],
    "hit_table_local_time": [100, 200, 300, 400, 500, 600],
    "hit_table_local_wire": [10, 20, 30, 40, 50, 60],
    "hit_table_integral": [1, 2, 3, 4, 5, 6],
    "hit_table_rms": pytest.approx([2, 2.2, 2.4, 2.6, 2.8, 3]),
    "spacepoint_table_spacepoint_id": [0, 1, 2],
    "spacepoint_table_hit_id_u": [0, 3, -1],
    "spacepoint_table_hit_id_v": [1, 4, 4],
    "spacepoint_table_hit_id_y": [2, -1, 5],
}
BY_ID = {(1, 2, 3): (3, 1), (1, 2, 4): (3, 2)}
BY_EVENT = {(0, 0, 3): (3, 1), (0, 0, 4): (3, 2)}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *((name, BY_ID) for name in ("fixed_multiindex", "table_multiindex", "table_data_columns")),
        *((name, BY_EVENT) for name in ("fixed_index", "table_index")),
        ("fixed_index_no_spacepoints", {(0, 0, 3): (3, 0), (0, 0, 4): (3, 0)}),
        ("fixed_one_event", {(0, 0, 0): (6, 3)}),
        *((f"{name}_no_spacepoints", {(0, 0, 0): (6, 0)}) for name in ("fixed", "table")),
    ],
)
def test_pandas_tables_are_read_by_whatever_part_of_the_id_they_have(name, rows):
    got = read_all(DATA / f"pandas_{name}.h5")
    tables = ("hit_table_hit_id", "spacepoint_table_spacepoint_id")
    assert {each: tuple(len(t[key]) for key in tables) for each, t in got} == rows
    for key, values in PANDAS.items():
        none = "no_spacepoints" in name and key.startswith("spacepoint")
        assert [v for _, tensors in got for v in tensors[key]] == ([] if none else values)


def test_the_real_event_is_read(real_data):
    with EventFile(real_data / "uboone_event_189hits.h5", {**INPUTS, **POSITION}) as file:
        assert file.event_ids == ((7010, 1705, 85251),)
        event = file.read(0)
    assert event.hits == 189
    assert len(event.tensors["spacepoint_table_hit_id_u"]) == 72
    for name, datatype in {**INPUTS, **POSITION}.items():
        assert event.tensors[name].dtype == (np.float32 if datatype == "FP32" else np.int32)
        assert len(event.tensors[name]) == (72 if name.startswith("spacepoint") else 189)


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize(
    "name",
    # The others are compared with the ids of hits and spacepoints.
    [
        *(f"hit_table/{name}" for name in (*HIT_COLUMNS, "event_id") if name != "hit_id"),
        *("spacepoint_table/hit_id", "spacepoint_table/event_id"),
    ],
)
def test_a_column_of_another_length_is_named(tmp_path, name, rows):
    path = spoiled(tmp_path, name, np.zeros((rows, 3 if name.endswith("_id") else 1), np.int32))
    with pytest.raises(EventFileError) as caught:
        EventFile(path)
    assert re.search(rf"a\.h5: {name.partition('/')[0]}.*\b{rows} rows", caught.value.cause)
    assert "\n" not in caught.value.cause


def spoiled(folder: Path, name: str, value: object = None) -> Path:
    """Write an event without this dataset or table, or with something else in its place."""
    path = folder / "a.h5"
    write_pynuml(path, [((1, 1, 1), *make_event(4, 2))])
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        if value is not None:
            file[name] = value
    return path


@pytest.mark.parametrize(
    "there",
    [None, h5py.SoftLink("/gone"), h5py.ExternalLink("gone.h5", "/gone"), h5py.Empty("f4")],
    ids=["nothing", "a soft link to nowhere", "an external one", "no shape"],
)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hit_table", "no hit_table in it"),
        ("spacepoint_table", "no spacepoint_table in it"),
        *((f"hit_table/{each}", rf"hit_table has no column {each}\b") for each in HIT_COLUMNS),
        ("spacepoint_table/spacepoint_id", "spacepoint_table has no column spacepoint_id"),
        ("spacepoint_table/hit_id", "spacepoint_table has no column hit_id_u"),
    ],
)
def test_a_missing_table_or_column_is_named(tmp_path, name, says, there):
    with pytest.raises(EventFileError, match=rf"a\.h5: {says}"):
        EventFile(spoiled(tmp_path, name, there))


def test_what_is_no_whole_hdf5_file_is_said_in_one_line(tmp_path):
    path = tmp_path / "a.h5"
    with pytest.raises(EventFileError, match=r"a\.h5: no such file"):
        EventFile(path)
    path.write_text("not a table")
    with pytest.raises(EventFileError, match=r"a\.h5: not an HDF5 file"):
        EventFile(path)
    write_pynuml(path, [((1, 1, 1), *make_event(400, 20))])
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(EventFileError, match=r"a\.h5: .*truncated") as caught:
        EventFile(path)
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize("name", ["event_table/event_id", "hit_table/hit_id", "edep_table/hit_id"])
def test_rows_that_are_claimed_and_not_stored_are_refused(tmp_path, name):
    path = spoiled(tmp_path, name)
    with h5py.File(path, "r+") as file:
        file.create_dataset(name, (2**32, 3), "i4", chunks=(1 << 16, 3))
    with pytest.raises(EventFileError, match=rf"a\.h5: {name} claims 52 GB, and stores 0 bytes"):
        EventFile(path, also=TRUE_COLUMNS)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5, 2.0**31])
def test_a_value_that_is_no_int32_fails_that_event_only(tmp_path, value, dtype):
    events = [((1, 1, i), *make_event(4, 1, i)) for i in range(2)]
    with np.errstate(over="ignore"):
        events[1][1]["local_wire"] = np.array([1.0, 2.0, value, 4.0]).astype(dtype)
    events[0][1]["local_wire"] = np.array([1.0, 2.0, 3.0, 4.0]).astype(dtype)
    write_pynuml(tmp_path / "a.h5", events)
    with EventFile(tmp_path / "a.h5") as file:
        assert file.read(0).tensors["hit_table_local_wire"].tolist() == [1, 2, 3, 4]
        with pytest.raises(EventFileError, match=r"a\.h5: hit_table/local_wire row 2 of the event"):
            file.read(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5, 2.0**63])
@pytest.mark.parametrize("table", ["event_table", "hit_table"])
def test_an_id_that_is_no_whole_number_is_refused(tmp_path, table, value):
    path = tmp_path / "a.h5"
    write_pynuml(path, [((1, 1, i), *make_event(4, 2, i)) for i in range(2)], sequence=False)
    with h5py.File(path, "r+") as file:
        ids = file[f"{table}/event_id"][()].astype(float)
        del file[f"{table}/event_id"]
        file[f"{table}/event_id"] = ids
    with EventFile(path) as events:
        assert events.event_ids == ((1, 1, 0), (1, 1, 1))
    with h5py.File(path, "r+") as file:
        file[f"{table}/event_id"][1, 2] = value
    with pytest.raises(EventFileError, match=re.escape(f"{table}: event is {value} in row 1: ids")):
        EventFile(path)


class _Hostile:
    def __reduce__(self) -> Any:
        return (os.system, ("false",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_column_names_are_read_without_unpickling(protocol):
    assert pickled_names(pickle.dumps(["a", "b"], protocol), "x") == ("a", "b")
    with pytest.raises(EventFileError, match="x: its column names"):
        pickled_names(pickle.dumps(["a", _Hostile()], protocol), "x")
    with pytest.raises(EventFileError, match="x: its column names"):
        pickled_names(pickle.dumps(["a"], protocol)[:-1], "x")
