"""Reading processed graph files: pynuml's own of both generations, and files that are wrong."""

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from deploy.events.files import EventFile
from deploy.events.graphs import GraphFile, open_events
from deploy.events.tables import EventFileError
from numl_formats.contract import INPUTS, TYPES

DATA = Path(__file__).parent / "data"
GENERATIONS = ("first", "second")
EVENT = "r1_sr9_evt4"
POSITION = {f"spacepoint_table_position_{axis}": "FP32" for axis in "xyz"}
MORE = {**INPUTS, **POSITION, "hit_table_tpc": "INT32"}


def graphs(generation):
    return DATA / f"graphs_{generation}.gnn.h5"


def edited(generation, folder, edit):
    """Copy a file, with the fields of one of its graphs changed."""
    path = folder / "edited.gnn.h5"
    shutil.copy(graphs(generation), path)
    with h5py.File(path, "r+") as file:
        record = file[f"dataset/{EVENT}"][()]
        fields = {name: np.asarray(record[name]) for name in record.dtype.names}
        edit(fields)
        kind = np.dtype([(name, a.dtype, a.shape) for name, a in fields.items()])
        del file[f"dataset/{EVENT}"]
        content = np.array(tuple(fields.values()), dtype=kind)
        file.create_dataset(f"dataset/{EVENT}", shape=(), dtype=kind, data=content)
    return path


@pytest.mark.parametrize("generation", GENERATIONS)
def test_events_are_those_that_the_graphs_were_made_of(generation):
    inputs = MORE if generation == "second" else {**INPUTS, **POSITION}
    # Spacepoints of a graph have no ids of their own; a request's are never read.
    own = {name: kind for name, kind in inputs.items() if not name.endswith("spacepoint_id")}
    with (
        EventFile(DATA / "graphs_events.h5", inputs) as events,
        open_events(graphs(generation), inputs) as file,
    ):
        assert isinstance(file, GraphFile)
        assert file.event_ids == events.event_ids == ((1, 9, 1), (1, 9, 4), (1, 9, 9))
        for index in range(len(file)):
            wanted, given = events.read(index).tensors, file.read(index).tensors
            assert given.keys() == wanted.keys() | {"spacepoint_table_spacepoint_id"}
            order = np.argsort(wanted["hit_table_local_plane"], kind="stable")
            for name in own:
                rows = order if name.startswith("hit_table") else slice(None)
                array = wanted[name][rows]
                if name.startswith("spacepoint_table_hit_id"):
                    # An id that names no hit is no edge.
                    known = np.isin(array, wanted["hit_table_hit_id"])
                    array = np.where(known, array, -1)
                assert given[name].dtype == array.dtype, name
                np.testing.assert_allclose(given[name], array, rtol=2e-7, err_msg=name)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_split_has_its_events_in_its_order(generation):
    with GraphFile(graphs(generation), only="test") as file:
        assert file.event_ids == ((1, 9, 4), (1, 9, 9))
        assert file.read(1).event_id == (1, 9, 9)


def test_both_generations_hold_the_same_truth():
    with GraphFile(graphs("first")) as first, GraphFile(graphs("second")) as second:
        assert first.semantic_classes == second.semantic_classes
        assert first.event_classes == ("cc_nue", "cc_numu", "cc_nutau", "nc")
        for index in range(3):
            one, two = first.truth(index), second.truth(index)
            hits = first.read(index).hits
            assert one.event == two.event
            np.testing.assert_array_equal(one.semantic, two.semantic)
            assert one.semantic.shape == one.instance.shape == (hits,)
            assert -1 < one.semantic.max() < len(first.semantic_classes)
            # pynuml numbers the particles again in graphs of the second generation.
            pairs = {(int(a), int(b)) for a, b in zip(one.instance, two.instance, strict=True)}
            assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 2
            np.testing.assert_array_equal(one.vertex, two.vertex)
            assert two.vertex.shape == (3,)


def test_a_plane_without_hits_and_a_graph_without_spacepoints_are_read(tmp_path):
    def edit(fields):
        for name in [n for n in fields if n.startswith(("v/", "v_"))]:
            del fields[name]
        for name in [n for n in fields if n.startswith(("sp/", "u_nexus", "y_nexus"))]:
            fields[name] = np.zeros((), fields[name].dtype)  # as pynuml writes an empty tensor

    with GraphFile(edited("first", tmp_path, edit)) as file:
        tensors = file.read(1).tensors
        assert set(tensors["hit_table_local_plane"]) == {0, 2}
        assert len(tensors["spacepoint_table_hit_id_v"]) == 0
        assert file.truth(1).semantic is not None


def _changed(name, change):
    def edit(fields):
        fields[name] = change(fields[name])

    return edit


def _without_positions(fields):
    del fields["sp/pos"]
    fields["sp/num_nodes"] = np.array(10**15)


EDGES = "u_nexus_sp/edge_index"
NOT_WHOLE = f"dataset/{EVENT} is not a whole graph: "


@pytest.mark.parametrize(("generation", "edit", "message"), [
    ("first", _changed("u/x", lambda rows: np.repeat(rows[:, :1], 3, axis=1)),
     f"dataset/{EVENT}: its hits have 3 features, and a graph file does not name them; "
     "2 (integral, rms) can be told: send the file that the graphs were made of"),
    ("first", _changed("u/pos", lambda positions: positions * np.float32(1.1)),
     f"dataset/{EVENT}: the positions in plane u are not wires times 0.3, pynuml's default, "
     "so the wires cannot be told: send the file that the graphs were made of"),
    ("first", _changed(EDGES, lambda edges: edges * [[1], [0]]),
     f"dataset/{EVENT} has spacepoints with two hits in plane u, which a request cannot say"),
    ("first", _changed(EDGES, lambda edges: edges + 100_000), f"{NOT_WHOLE}index"),
    ("first", lambda fields: fields.pop("u/id"), f"{NOT_WHOLE}'u/id'"),
    ("first", _changed("sp/pos", lambda axes: axes[:, :2]), f"{NOT_WHOLE}index 2 is out of bounds"),
    ("first", _changed("u/x", lambda rows: rows[:-1]), f"{NOT_WHOLE}u/x has "),
    ("first", _changed("u/id", lambda ids: ids[:, None]), f"{NOT_WHOLE}u/id has "),
    ("first", _changed(EDGES, lambda e: e - e.max() - 1), f"{NOT_WHOLE}an edge from row -"),
    ("first", _changed(EDGES, lambda e: e.astype(float)), f"{NOT_WHOLE}arrays used as ind"),
    ("first", _changed(EDGES, lambda e: e[[0, 1, 1]]), f"{NOT_WHOLE}edges of shape [3, "),
    ("first", _without_positions, f"{NOT_WHOLE}Unable to allocate"),
    ("second", _changed("hit/x", lambda rows: rows[:-1]), f"{NOT_WHOLE}hit/x has "),
    ("second", _changed("hit/plane", lambda planes: planes[:-1]), f"{NOT_WHOLE}hit/plane has "),
    ("second", _changed("hit_nexus_sp/edge_index", lambda e: e + 100_000), f"{NOT_WHOLE}index 10"),
    ("second", _changed("hit_nexus_sp/edge_index", lambda e: e[:1]), f"{NOT_WHOLE}edges of shape"),
])  # fmt: skip
def test_a_graph_that_cannot_be_had_back_is_refused_alone_in_one_line(
    tmp_path, generation, edit, message
):
    with GraphFile(edited(generation, tmp_path, edit)) as file:
        file.read(0)
        with pytest.raises(EventFileError, match=re.escape(message)) as refused:
            file.read(1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("generation", "edit", "message"), [
    ("first", _changed("u/y_semantic", lambda y: y[:-1]), "u/y_semantic has "),
    ("first", _changed("u/y_semantic", lambda y: y[:, None]), "u/y_semantic has "),
    ("first", _changed("u/y_instance", lambda y: y.astype(float)), "u/y_instance is float64"),
    ("second", _changed("hit/y_semantic", lambda y: y[:-1]), "hit/y_semantic has "),
    ("second", _changed("hit/y_semantic", lambda y: y.astype("f4")), "hit/y_semantic is float32"),
    ("second", _changed("hit_cluster-truth_particle-truth/edge_index", lambda e: e + 100_000),
     "index 10"),
    ("second", _changed("evt/y", lambda y: np.full(y.shape, np.nan)), "evt/y is nan"),
    ("second", _changed("evt/y", lambda y: np.full(y.shape, 1.5)), "evt/y is 1.5"),
])  # fmt: skip
def test_a_truth_that_fits_no_hits_is_refused_alone_and_the_event_is_read(
    tmp_path, generation, edit, message
):
    with GraphFile(edited(generation, tmp_path, edit)) as file:
        file.truth(0)
        with pytest.raises(EventFileError, match=re.escape(f"{NOT_WHOLE}{message}")):
            file.truth(1)
        assert file.read(1).hits > 0


def test_small_integers_of_a_truth_are_counted_without_overflow(tmp_path):
    with GraphFile(edited("first", tmp_path, _changed("u/y_semantic", np.int8))) as file:
        semantic = file.truth(1).semantic
        assert semantic.dtype == np.int64


@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_event_whose_planes_are_all_empty_has_every_column(tmp_path, generation):
    def edit(fields):
        for name in fields:
            if name.split("/")[0] in ("hit", "u", "v", "y", "sp") or "nexus" in name:
                fields[name] = np.zeros((), fields[name].dtype)  # as pynuml writes an empty tensor

    with GraphFile(edited(generation, tmp_path, edit), INPUTS) as file:
        tensors = file.read(1).tensors
        assert {name: (len(a), a.dtype) for name, a in tensors.items()} == {
            name: (0, np.dtype(TYPES[kind])) for name, kind in INPUTS.items()
        }
        assert file.truth(1).semantic is None


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("planes", ["u", "v"], "its graphs have the planes u, v, the model u, v, y"),
        ("planes", "u", "its graphs have the planes u, the model u, v, y"),
        ("samples/test", [], "has no split test (it has test, train)"),
        ("samples/test", ["r1"], "no dataset/r1, which test lists"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, name, values, message):
    path = tmp_path / "changed.gnn.h5"
    shutil.copy(graphs("first"), path)
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, data=values, dtype=h5py.string_dtype())
    with pytest.raises(EventFileError, match=re.escape(message)):
        GraphFile(path, only="test")


def test_a_column_that_the_graphs_lack_is_named():
    inputs = {**INPUTS, "hit_table_goodness": "FP32"}
    with GraphFile(graphs("first"), inputs, ["hit_table_goodness"]) as file:
        assert "hit_table_goodness" not in file.read(0).tensors
    with (
        GraphFile(graphs("first"), inputs) as file,
        pytest.raises(EventFileError, match="lacks hit_table_goodness, which the model reads"),
    ):
        file.read(0)


def test_a_name_with_a_number_beyond_int64_is_not_taken_for_an_id(tmp_path):
    path = tmp_path / "long.gnn.h5"
    shutil.copy(graphs("second"), path)
    with h5py.File(path, "r+") as file:
        file.move(f"dataset/{EVENT}", f"dataset/r1_sr9_evt{10**30}")
    with open_events(path) as file, open_events(graphs("second")) as before:
        assert sorted(file.event_ids) == sorted(before.event_ids)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([1, 2, 3], "is not a graph as pynuml writes it"),
        (1.0, "is not a graph as pynuml writes it"),
        (None, "is not a graph as pynuml writes it"),
        (np.array((np.inf,), [("metadata/run", "f8")]), "is not a whole graph: cannot convert"),
    ],
    ids=["array", "number", "group", "infinite run"],
)
def test_a_file_of_something_else_is_refused_with_its_name(tmp_path, content, fault):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        if content is None:
            file.create_group("dataset/images")
        else:
            file["dataset/images"] = content
    with pytest.raises(EventFileError, match=f"other.h5: dataset/images {fault}"):
        open_events(tmp_path / "other.h5")
