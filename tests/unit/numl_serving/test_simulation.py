import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numl_demo import geometry, physics
from numl_demo.events import packaged_events
from numl_demo.graphs import NUGRAPH2_LABELS, NUGRAPH3_LABELS, make_graphs, pynuml_event
from numl_demo.hdf5 import read_events, write_events
from numl_demo.simulate import CATEGORIES, SimulatedEvent, simulate_event, simulate_events
from oracle25 import server
from pynuml.labels import StandardLabels

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "simulate_events.py"
DEMO_EVENTS = ROOT / "scripts" / "data" / "demo_events.h5"

# tables and columns of MicroBooNE's open data in pynuml's layout: (type, width)
LAYOUT = {
    "hit_table": {
        "hit_id": ("i4", 1), "integral": ("f4", 1), "local_plane": ("i4", 1),
        "local_time": ("f4", 1), "local_wire": ("i4", 1), "rms": ("f4", 1), "tpc": ("i4", 1),
    },
    "spacepoint_table": {
        "hit_id": ("i4", 3), "position": ("f4", 3), "spacepoint_id": ("i4", 1),
    },
    "edep_table": {
        "energy": ("f4", 1), "energy_fraction": ("f4", 1), "g4_id": ("i4", 1),
        "hit_id": ("i4", 1),
    },
    "particle_table": {
        "category": ("i4", 1), "end_position": ("f4", 3), "end_position_corr": ("f4", 3),
        "end_process": ("O", 1), "end_wire_pos": ("i4", 3), "end_wire_time": ("f4", 1),
        "g4_id": ("i4", 1), "instance": ("i4", 1), "momentum": ("f4", 1), "parent_id": ("i4", 1),
        "start_position": ("f4", 3), "start_position_corr": ("f4", 3), "start_process": ("O", 1),
        "start_wire_pos": ("i4", 3), "start_wire_time": ("f4", 1), "type": ("i4", 1),
    },
    "event_table": {
        "is_cc": ("i4", 1), "lep_energy": ("f4", 1), "nu_dir": ("f4", 3), "nu_energy": ("f4", 1),
        "nu_pdg": ("i4", 1), "nu_vtx": ("f4", 3), "nu_vtx_corr": ("f4", 3),
        "nu_vtx_wire_pos": ("i4", 3), "nu_vtx_wire_time": ("f4", 1),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def events():
    return list(simulate_events(14, seed=11, hits=(100, 600)))


def column(event: SimulatedEvent, table: str, name: str) -> np.ndarray[Any, Any]:
    return event.tables[table][name][:, 0]


def test_the_same_seed_gives_the_same_event_whatever_else_is_made():
    alone = simulate_event(3, 2)
    second = list(simulate_events(2, 3))[1]
    for name, table in alone.tables.items():
        for key, values in table.items():
            np.testing.assert_array_equal(values, second.tables[name][key], err_msg=key)


def test_hits_are_finite_and_in_the_detectors_range(events):
    for event in events:
        assert 100 <= event.num_hits <= 600
        plane = column(event, "hit_table", "local_plane")
        wire = column(event, "hit_table", "local_wire")
        assert set(plane) == {0, 1, 2}
        assert np.all(wire >= 0)
        assert np.all(wire < geometry.WIRE_COUNT[plane])
        for name in ("local_time", "integral", "rms"):
            assert np.all(np.isfinite(column(event, "hit_table", name)))
        assert np.all(column(event, "hit_table", "integral") > 0)
        assert np.array_equal(column(event, "hit_table", "hit_id"), np.arange(event.num_hits))


def test_no_wire_that_is_dead_gives_a_hit(events):
    dead = geometry.dead_wires()
    for event in events:
        plane = column(event, "hit_table", "local_plane")
        wire = column(event, "hit_table", "local_wire")
        # noise is of the readout and may sit anywhere; charge is seen on living wires only
        signal = np.unique(column(event, "edep_table", "hit_id"))
        assert not any(dead[p][w] for p, w in zip(plane[signal], wire[signal], strict=True))


def test_pynuml_gives_every_particle_the_label_the_simulation_meant(events):
    for event in events:
        labels = StandardLabels()(pynuml_event(event)["particle_table"]).set_index("g4_id")
        g4_id = column(event, "particle_table", "g4_id")
        assert len(labels) == len(g4_id)
        for name, given in (("category", "semantic_label"), ("instance", "instance_label")):
            wanted = column(event, "particle_table", name)
            np.testing.assert_array_equal(labels.loc[g4_id, given], wanted)


def test_pynuml_accepts_every_event_under_both_labellings(events):
    for labels in (NUGRAPH2_LABELS, NUGRAPH3_LABELS):
        graphs = make_graphs(events, labels)
        assert len(graphs) == len(events)
        for graph in graphs:
            for plane in geometry.PLANES:
                y = graph[plane].y_semantic
                assert int(y.max()) < len(labels.semantic_classes)
                assert int(y.min()) >= -1


def test_every_class_has_its_share_and_some_hits_have_no_truth(events):
    count = np.zeros(len(CATEGORIES))
    for event in events:
        category = dict(
            zip(
                column(event, "particle_table", "g4_id"),
                column(event, "particle_table", "category"),
                strict=True,
            )
        )
        g4_id, hit = column(event, "edep_table", "g4_id"), column(event, "edep_table", "hit_id")
        for index in np.unique(hit, return_index=True)[1]:
            count[category[g4_id[index]]] += 1
    share = count / sum(event.num_hits for event in events)
    assert share[:-1].min() > 0.01
    assert share.max() < 0.45
    assert share[CATEGORIES.index("invisible")] == 0
    assert 0.03 < 1 - share.sum() < 0.4


def test_energy_fractions_of_a_hit_sum_to_one(events):
    for event in events:
        hit = column(event, "edep_table", "hit_id")
        total = np.bincount(hit, column(event, "edep_table", "energy_fraction"))
        np.testing.assert_allclose(total[np.unique(hit)], 1.0, rtol=1e-5)


def test_most_spacepoints_match_wires_and_times_and_some_do_not(events):
    good = lost = total = 0
    for event in events:
        ids = event.tables["spacepoint_table"]["hit_id"]
        position = event.tables["spacepoint_table"]["position"].astype(float)
        assert len(np.unique(column(event, "spacepoint_table", "spacepoint_id"))) == len(ids)
        assert ids.max() < event.num_hits
        for plane in range(3):
            with_hit = ids[ids[:, plane] >= 0, plane]
            assert np.all(column(event, "hit_table", "local_plane")[with_hit] == plane)
        wires = column(event, "hit_table", "local_wire")[np.where(ids < 0, 0, ids)]
        distance = np.abs(geometry.wire_coordinate(position) - wires)
        good += int(np.all((distance < 3) | (ids < 0), axis=1).sum())
        lost += int((ids < 0).any(axis=1).sum())
        total += len(ids)
    assert good > 0.85 * total
    assert 0 < lost < 0.3 * total


def test_a_written_file_has_the_layout_of_the_open_data(tmp_path, events):
    path = tmp_path / "events.h5"
    assert write_events(path, events[:3]) == 3
    with h5py.File(path) as file:
        for table, columns in LAYOUT.items():
            assert set(file[table]) == {*columns, "event_id", "event_id.seq_cnt"}
            rows = len(file[f"{table}/event_id"])
            for name, (kind, width) in columns.items():
                assert file[table][name].dtype == np.dtype(kind), name
                assert file[table][name].shape == (rows, width), name
            assert file[f"{table}/event_id"].dtype == np.int32
            counts = file[f"{table}/event_id.seq_cnt"]
            assert counts.dtype == np.int64
            assert counts[:, 1].sum() == rows
    assert [p.name for p in tmp_path.iterdir()] == ["events.h5"]


def test_what_was_written_is_read_back(tmp_path, events):
    path = tmp_path / "events.h5"
    write_events(path, events[:4])
    for before, after in zip(events[:4], read_events(path), strict=True):
        assert before.event_id == after.event_id
        for name, table in before.tables.items():
            for key, values in table.items():
                found = after.tables[name][key]
                if values.dtype == object:
                    found = np.char.decode(found.astype(bytes)).astype(object)
                np.testing.assert_array_equal(values, found)


def test_an_event_without_spacepoints_has_no_entry_and_is_read_back(tmp_path, events):
    first, second = events[:2]
    none = {key: values[:0] for key, values in first.tables["spacepoint_table"].items()}
    bare = SimulatedEvent(first.event_id, first.tables | {"spacepoint_table": none})
    path = tmp_path / "events.h5"
    write_events(path, [bare, second])
    found = read_events(path)
    assert [len(e.tables["spacepoint_table"]["hit_id"]) for e in found] == [
        0,
        len(second.tables["spacepoint_table"]["hit_id"]),
    ]


@pytest.mark.parametrize(
    ("mass", "kinetic", "expected"),
    [(105.66, 100.0, 32.0), (938.27, 100.0, 8.0), (938.27, 200.0, 27.0), (105.66, 300.0, 128.0)],
)
def test_ranges_agree_with_published_tables(mass, kinetic, expected):
    # Groom et al. (muons) and NIST PSTAR (protons), converted to liquid argon of 1.396 g/cm3
    assert physics.range_of(kinetic, mass) == pytest.approx(expected, rel=0.2)


def test_wires_and_positions_invert_each_other():
    rng = np.random.default_rng(2)
    points = rng.uniform(geometry.LOWER, geometry.UPPER, size=(50, 3))
    wires = geometry.wire_coordinate(points)
    usable = np.ones((50, 3), dtype=bool)
    usable[np.arange(50), rng.integers(0, 3, 50)] = False
    np.testing.assert_allclose(geometry.crossing(wires, usable), points[:, 1:], atol=1e-9)
    np.testing.assert_allclose(
        geometry.drift_position(geometry.drift_time(points[:, 0])), points[:, 0]
    )


def test_the_packaged_events_are_those_the_code_makes():
    for made, packaged in zip(packaged_events(), read_events(DEMO_EVENTS), strict=True):
        assert made.event_id == packaged.event_id
        for name, values in made.tables["hit_table"].items():
            np.testing.assert_allclose(values, packaged.tables["hit_table"][name], rtol=1e-5)


def test_a_process_of_its_own_writes_nugraph_s_graphs(tmp_path):
    """The one below has pynuml 25.4.0 before the script asks for it."""
    out = tmp_path / "x.gnn.h5"
    words = [sys.executable, SCRIPT, out, "--graphs", "nugraph3", "--events", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with h5py.File(out) as file:
        assert list(file["dataset"]) == ["r1_sr0_evt1"]


def test_simulated_graphs_are_those_that_nugraph_trains_on(tmp_path):
    out = tmp_path / "x.gnn.h5"
    words = [str(out), "--graphs", "nugraph3", "--events", "2"]
    assert server().ask("run", script=str(SCRIPT), words=words)[0] == 0
    assert list(tmp_path.iterdir()) == [out]
    with h5py.File(out) as file:
        names = file["samples/test"].asstr()[()].tolist()
        assert names == list(file["dataset"]) == ["r1_sr0_evt1", "r1_sr0_evt2"]
        classes = tuple(file["semantic_classes"].asstr()[()])
        assert classes == NUGRAPH3_LABELS.semantic_classes
        graph = file[f"dataset/{names[0]}"][()]
        assert {"hit/y_semantic", "evt/y", "evt/y_vtx"} <= set(graph.dtype.names)
        assert graph["hit/y_semantic"].max() < len(classes)
