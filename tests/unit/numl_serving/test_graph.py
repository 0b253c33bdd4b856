"""The native graph of an event against pynuml 24.7.1 and PyTorch Geometric themselves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numl_demo.graphs import Columns, request_event
from numl_serving.errors import EventError
from numl_serving.event import Event
from numl_serving.graph import EventGraph, build_graph
from numpy.typing import NDArray
from oracle import card_of
from pynuml.process.hitgraph import HitGraphProducer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import QhullError
from small_models import make_event, random_event
from strategies import events

from numl_formats.card import EXTENSION_FEATURES

CARD = card_of("per-plane")
PLANES = CARD.planes


@pytest.fixture(scope="module")
def pynuml_graph():
    """Build an event's graph by pynuml's own producer, without its limit on small events."""
    producer = HitGraphProducer(Columns(), lower_bound=0)
    return lambda event: producer(request_event(event.tensors()))[1]


def planar(graph: EventGraph, plane: int) -> NDArray[np.int64]:
    """Return a plane's edges as PyTorch Geometric has them, ``[2, E]``, sorted."""
    first = sum(graph.plane_sizes[:plane])
    hits = np.arange(first, first + graph.plane_sizes[plane])
    begin, end = graph.edge_offsets[[first, first + len(hits)]]
    receiving = np.repeat(hits, np.diff(graph.edge_offsets)[hits])
    edges = np.stack([graph.edge_source[begin:end], receiving]) - first
    return sorted_edges(edges)


def nexus(graph: EventGraph, plane: int) -> NDArray[np.int64]:
    """Return the edges of a plane's hits to spacepoints, ``[2, N]``, sorted."""
    first, spacepoints = sum(graph.plane_sizes[:plane]), graph.num_spacepoints
    segments = slice(plane * spacepoints, (plane + 1) * spacepoints + 1)
    offsets = graph.up_offsets[segments]
    spacepoint = np.repeat(np.arange(spacepoints), np.diff(offsets))
    hits = graph.up_hit[offsets[0] : offsets[-1]] - first
    return sorted_edges(np.stack([hits, spacepoint]))


def sorted_edges(edges: NDArray[Any]) -> NDArray[np.int64]:
    return edges[:, np.lexsort(edges[::-1])].astype(np.int64)


def plane_features(graph: EventGraph, plane: int) -> NDArray[np.float32]:
    first = sum(graph.plane_sizes[:plane])
    return graph.features[first : first + graph.plane_sizes[plane]]


def assert_valid_edges(edges: NDArray[np.int64], hits: int) -> None:
    """Check what every plane graph promises: symmetric, no loop, no duplicate."""
    pairs = list(zip(*edges.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert {(second, first) for first, second in pairs} == set(pairs)
    assert all(first != second for first, second in pairs)
    assert edges.size == 0 or 0 <= edges.min() <= edges.max() < hits


def assert_connected(edges: NDArray[np.int64], hits: int) -> None:
    """Check that no hit is cut off: QHull may leave out a hit beside another, ours may not."""
    adjacency = coo_array((np.ones(edges.shape[1]), edges), shape=(hits, hits))
    assert connected_components(adjacency)[0] == 1


def assert_same_graph(event: Event, ours: EventGraph, theirs: Any) -> None:
    for plane, name in enumerate(PLANES):
        if name not in theirs.node_types:  # pynuml leaves a plane without hits out
            assert ours.plane_sizes[plane] == 0
            continue
        store, features = theirs[name], plane_features(ours, plane)
        np.testing.assert_array_equal(features[:, :2], store.pos.numpy())
        np.testing.assert_array_equal(features[:, 2:], store.x.numpy())
        for edges, kind in (
            (planar(ours, plane), (name, "plane", name)),
            (nexus(ours, plane), (name, "nexus", "sp")),
        ):
            wanted = theirs[kind].edge_index.numpy()
            np.testing.assert_array_equal(edges, sorted_edges(wanted))
    in_plane = np.concatenate([np.flatnonzero(event.hit("local_plane") == p) for p in range(3)])
    np.testing.assert_array_equal(ours.rows, in_plane)


def plane_graph(wire: Any, time: Any) -> NDArray[np.int64]:
    """Return the edges of hits in one plane."""
    return planar(build_graph(make_event(np.zeros(len(wire)), wire, time), CARD), 0)


@given(event=events())
def test_graph_equals_the_one_that_pynuml_and_pyg_build(event, pynuml_graph):
    try:
        ours = build_graph(event, CARD)
    except EventError:  # ids that repeat, for few spacepoints
        ids = event.hit("hit_id") * 3 + event.hit("local_plane")
        assert len(np.unique(ids)) < event.num_hits
        return
    try:
        theirs = pynuml_graph(event)
    except QhullError:  # four or more hits of a plane at one position
        theirs = None
    if theirs is not None:
        assert_same_graph(event, ours, theirs)
    for plane, hits in enumerate(ours.plane_sizes):
        assert_valid_edges(planar(ours, plane), hits)


@pytest.mark.parametrize("hits", [189, 1300, 5000])
def test_graph_of_a_large_event_equals_the_one_that_pynuml_and_pyg_build(hits, pynuml_graph):
    event = random_event(hits, hits)
    assert_same_graph(event, build_graph(event, CARD), pynuml_graph(event))


def on_a_circle(hits: int) -> tuple[Any, Any]:
    angle = 2 * np.pi * np.arange(hits) / hits
    return np.round(1000 * np.cos(angle)), 1000 * 0.3 / 0.055 * np.sin(angle)


@pytest.mark.parametrize(
    ("wire", "time"),
    [
        (np.arange(300), np.arange(300)),
        (np.full(300, 7), np.arange(300)),
        (np.arange(300), np.full(300, 7)),
        (np.arange(400) % 20, np.arange(400) // 20 * 10),
        (np.arange(600) // 2 % 17, np.arange(600) // 2 * 3.7),
        on_a_circle(300),
        (np.full(6, 100), np.array([520, 520, 512, 520, 520, 508])),
    ],
    ids=["line", "one wire", "one time", "grid", "pairs", "circle", "four at one position"],
)
def test_hits_in_a_pattern_have_the_edges_of_pyg(wire, time, pynuml_graph):
    event = make_event(np.zeros(len(wire)), wire, time)
    ours = build_graph(event, CARD)
    assert_same_graph(event, ours, pynuml_graph(event))
    assert_connected(planar(ours, 0), len(wire))


ROWS = np.arange(22_500)
NEAR = np.random.default_rng(0).integers(0, 4, (2, 50))
# A pattern of more hits than QHull is asked for, too.
HARD_FOR_QHULL = {
    **{
        f"{n} at one position": (np.full(n, 100), np.full(n, 181)) for n in (4, 5, 50, 2000, 30_000)
    },
    "many on a wire": (0 * ROWS, ROWS // 150 * 10),
    "many on a line": (ROWS, ROWS // 150 * 10),
    "many on a grid": (ROWS % 150, ROWS // 150 * 10),
    "close together far from the origin": (10_000_000 + NEAR[0], 1e8 + 8 * NEAR[1]),
}


@pytest.mark.parametrize(("wire", "time"), HARD_FOR_QHULL.values(), ids=HARD_FOR_QHULL)
def test_hits_that_are_hard_for_qhull_are_connected(wire, time):
    edges = plane_graph(wire, time)
    assert_valid_edges(edges, len(wire))
    assert_connected(edges, len(wire))
    assert edges.shape[1] <= 6 * len(wire)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        max_size=12,
    )
)
def test_any_finite_positions_give_valid_edges(positions):
    wire, time = [each[0] for each in positions], [each[1] for each in positions]
    assert_valid_edges(plane_graph(wire, time), len(positions))


def with_spacepoints(hit_id: Any, named: Any) -> NDArray[np.int64]:
    """Return the edges of hits of the first plane to spacepoints that name one of them each."""
    hits = np.arange(len(hit_id))
    triplets = [(each, -1, -1) for each in named]
    event = make_event(0 * hits, hits, 3.7 * hits % 11, hit_id=hit_id, triplets=triplets)
    return nexus(build_graph(event, CARD), 0)


@given(
    hit_id=st.lists(st.integers(-3, 12) | st.integers(-(2**31), 2**31 - 1), max_size=20),
    more=st.lists(st.integers(-3, 12), min_size=10, max_size=20),
)
@example(hit_id=[7, 4, 7], more=[-1, 5, 8])
@example(hit_id=[2**31 - 1, -(2**31), -1], more=[0])
def test_every_hit_with_the_id_of_a_spacepoint_has_an_edge(hit_id, more):
    named = [*hit_id, *more]
    wanted = {
        (hit, number)
        for number, each in enumerate(named)
        for hit, own in enumerate(hit_id)
        if own == each
    }
    try:
        edges = with_spacepoints(hit_id, named)
    except EventError:
        assert len(wanted) > 4 * len(named)
        return
    assert set(zip(*edges.tolist(), strict=True)) == wanted
    assert edges.shape[1] == len(wanted)


def test_ids_that_would_unfold_into_too_many_edges_are_refused_with_the_limit():
    with pytest.raises(EventError) as refused:
        with_spacepoints([7] * 1000, [7] * 10)
    assert str(refused.value) == (
        "hit_table.hit_id repeats within a plane: its 10 spacepoints would have 10000 hits, "
        "at most 120 (4 for each spacepoint and plane) are taken: ids must be unique in a plane"
    )


def test_position_scale_is_applied_to_wire_and_time():
    graph = build_graph(make_event([1], [10], [100]), replace(CARD, position_scale=(2.0, 0.5)))
    np.testing.assert_array_equal(graph.features[:, :2], [[20, 50]])


def test_an_event_without_positions_has_zeros_and_one_with_them_passes_them_on():
    card = card_of("24.7.1")
    columns = make_event([], [], [], triplets=[[-1, -1, -1]]).tensors()
    np.testing.assert_array_equal(
        build_graph(Event.from_tensors(columns, card.schema), card).position, [[0, 0, 0]]
    )
    for axis, value in zip("xyz", (1, 2, 3), strict=True):
        columns[f"spacepoint_table_position_{axis}"] = np.array([value], np.float32)
    graph = build_graph(Event.from_tensors(columns, card.schema), card)
    assert graph.num_spacepoints == 1
    np.testing.assert_array_equal(graph.position, [[1, 2, 3]])


@pytest.mark.parametrize("hits", [0, 1, 2, 3, 16, 17, 400])
def test_the_feature_extension_is_that_of_the_two_nearest_hits(hits):
    card = replace(CARD, hit_features=EXTENSION_FEATURES)
    event = random_event(hits, hits)
    graph = build_graph(event, card)
    wire, time = event.hit("local_wire")[graph.rows], event.hit("local_time")[graph.rows]
    place = np.stack((wire, time), 1).astype(np.float32) * np.float32(card.position_scale)
    plane = event.hit("local_plane")[graph.rows]
    degrees = np.bincount(graph.edge_source, minlength=hits)
    for hit in range(hits):
        others = np.flatnonzero(plane == plane[hit])
        others = others[others != hit]
        distance = np.linalg.norm(place[others].astype(float) - place[hit], axis=1)
        order = np.argsort(distance)[:2]
        near = [*others[order], hit, hit][:2]
        expected = [
            *(2 * place[hit] - place[near[0]] - place[near[1]]),
            np.log(max(degrees[hit], 1)),
            distance.min(initial=np.inf) if len(others) else 0,
        ]
        assert graph.features[hit] == pytest.approx(expected, rel=1e-4, abs=1e-3)
