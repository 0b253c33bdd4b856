"""The graph of an event against pynuml 24.7.1 and PyTorch Geometric themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numl_serving import graph
from numl_serving.event import PLANES
from numl_serving.graph import build_graph, delaunay_edges, nexus_edges
from pynuml.process.hitgraph import HitGraphProducer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import QhullError
from strategies import events, make_event, random_event


class Tables(dict):
    """What pynuml's producer asks of a file (add_group) and of an event (tables, name, id)."""

    event_id = (1, 2, 3)
    name = "event"

    def add_group(self, group, keys):
        pass


@pytest.fixture(scope="module")
def pynuml_graph():
    """Build an event's graph by pynuml's own producer, without its limit on small events."""
    producer = HitGraphProducer(Tables(), lower_bound=0)

    def build(event):
        tables = Tables()
        for table in ("hit_table", "spacepoint_table"):
            tables[table] = pd.DataFrame(
                {
                    name.removeprefix(f"{table}_"): array
                    for name, array in event.tensors().items()
                    if name.startswith(table)
                }
            )
        return producer(tables)[1]

    return build


def assert_valid_edges(edges, hits):
    """Check what every plane graph promises: symmetric, sorted, no loop, no duplicate."""
    assert edges.dtype == np.int64
    assert edges.shape[0] == 2
    pairs = list(zip(*edges.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert {(second, first) for first, second in pairs} == set(pairs)
    assert all(first != second for first, second in pairs)
    assert edges.size == 0 or edges.max() < hits


def assert_connected(edges, hits):
    """Check that no hit is cut off: QHull may leave out a hit beside another, ours may not."""
    adjacency = coo_array((np.ones(edges.shape[1]), edges), shape=(hits, hits))
    assert connected_components(adjacency)[0] == 1


def assert_same_graph(ours, theirs):
    for name, plane in zip(PLANES, ours.planes, strict=True):
        if name not in theirs.node_types:  # pynuml leaves a plane without hits out
            assert plane.position.shape == (0, 2)
            assert plane.features.shape == (0, 4)
            assert plane.edges.shape == plane.nexus.shape == (2, 0)
            continue
        store = theirs[name]
        np.testing.assert_array_equal(plane.position, store.pos.numpy())
        np.testing.assert_array_equal(plane.features[:, :2], store.pos.numpy())
        np.testing.assert_array_equal(plane.features[:, 2:], store.x.numpy())
        np.testing.assert_array_equal(plane.edges, theirs[name, "plane", name].edge_index.numpy())
        nexus = theirs[name, "nexus", "sp"].edge_index.numpy()
        if len(set(store.id.tolist())) < len(store.id):
            # With duplicate hit ids the order of the merge is pandas' own affair.
            nexus = nexus[:, np.lexsort(nexus)]
        np.testing.assert_array_equal(plane.nexus, nexus)


@given(event=events())
def test_graph_equals_the_one_that_pynuml_and_pyg_build(event, pynuml_graph):
    ours = build_graph(event)
    try:
        theirs = pynuml_graph(event)
    except QhullError:  # four or more hits of a plane at one position
        theirs = None
    if theirs is not None:
        assert_same_graph(ours, theirs)
    for plane in ours.planes:
        assert_valid_edges(plane.edges, len(plane.position))
        assert plane.position.dtype == plane.features.dtype == np.float32
        assert plane.nexus.dtype == np.int64


@pytest.mark.parametrize("hits", [189, 1300, 5000])
def test_graph_of_a_large_event_equals_the_one_that_pynuml_and_pyg_build(hits, pynuml_graph):
    event = random_event(np.random.default_rng(hits), hits, hits // 2)
    assert_same_graph(build_graph(event), pynuml_graph(event))


def test_fewer_than_four_hits_are_all_connected():
    for hits, edges in enumerate(([], [], [(0, 1), (1, 0)])):
        event = make_event([0] * hits, range(hits), range(hits))
        assert list(zip(*build_graph(event).planes[0].edges.tolist(), strict=True)) == edges
    triangle = build_graph(make_event([2] * 3, [5, 5, 5], [7, 7, 7])).planes[2]
    np.testing.assert_array_equal(triangle.edges, [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])


@pytest.mark.parametrize("hits", [4, 5, 50, 2000])
def test_coincident_hits_are_connected(hits):
    edges = delaunay_edges(np.full((hits, 2), [30, 10], np.float32))
    assert_valid_edges(edges, hits)
    assert_connected(edges, hits)
    assert edges.shape[1] <= 6 * hits


def test_hits_close_together_far_from_the_origin_are_connected():
    offset = np.random.default_rng(0).integers(0, 4, (50, 2)) / 16
    edges = delaunay_edges((1e6 + offset).astype(np.float32))
    assert_valid_edges(edges, 50)
    assert_connected(edges, 50)


@given(
    st.lists(
        st.tuples(
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        max_size=12,
    )
)
def test_any_finite_positions_give_valid_edges(positions):
    edges = delaunay_edges(np.array(positions, np.float32).reshape(-1, 2))
    assert_valid_edges(edges, len(positions))


def test_hits_that_qhull_refuses_altogether_are_chained_along_the_plane(monkeypatch):
    monkeypatch.setattr(graph, "_triangulate", lambda points: None)
    position = np.array([[3, 0], [1, 5], [2, 0], [1, 4]], np.float32)
    edges = delaunay_edges(position)
    assert set(zip(*edges.tolist(), strict=True)) == {
        (3, 1), (1, 3), (1, 2), (2, 1), (2, 0), (0, 2)
    }  # fmt: skip


def test_duplicate_hit_ids_give_an_edge_each():
    nexus = nexus_edges(np.array([7, 4, 7], np.int32), np.array([7, -1, 4, 7], np.int32))
    np.testing.assert_array_equal(nexus, [[0, 2, 1, 0, 2], [0, 0, 2, 3, 3]])


def test_unknown_ids_give_no_edge():
    nexus = nexus_edges(np.array([7, 4], np.int32), np.array([-1, 5, 8], np.int32))
    assert nexus.shape == (2, 0)


def test_position_scale_is_applied_to_wire_and_time():
    event = make_event([1], [10], [100])
    plane = build_graph(event, position_scale=(2.0, 0.5)).planes[1]
    np.testing.assert_array_equal(plane.position, [[20, 50]])


def test_spacepoint_positions_are_passed_on():
    event = make_event([], [], [], triplets=[[-1, -1, -1]])
    built = build_graph(event)
    assert built.num_spacepoints == 1
    assert built.spacepoint_position is None
