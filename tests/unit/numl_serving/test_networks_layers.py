"""What the networks are made of, and the batch they take."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numl_serving.graph import build_graph
from numl_serving.networks.batch import Edges, collate
from numl_serving.networks.layers import PlaneLinear, class_sum, segment_sum, softmax_aggregate
from oracle import NORMALISATION, card_of, random_event
from torch_geometric.nn import SoftmaxAggregation


def edges_of(rng: np.random.Generator, edges: int, nodes: int, sources: int = 9) -> Edges:
    """Make edges from 9 nodes, some to each of so many."""
    target = np.sort(rng.integers(0, nodes, edges))
    offsets = np.searchsorted(target, np.arange(nodes + 1))
    source = rng.integers(0, sources, edges)
    return Edges(*map(torch.from_numpy, (source, target, offsets)))


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 60),
    nodes=st.integers(1, 20),
    scale=st.sampled_from([0.0, 1.0, 100.0, 1e30]),
)
def test_softmax_aggregate_equals_that_of_pytorch_geometric(seed, rows, nodes, scale):
    rng = np.random.default_rng(seed)
    edges = edges_of(rng, rows, nodes)
    messages = torch.from_numpy(scale * rng.normal(size=(rows, 5)))
    expected = SoftmaxAggregation()(messages, edges.target, dim_size=nodes, dim=0)
    actual = softmax_aggregate(messages, edges)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12 * max(scale, 1e-3))


@pytest.mark.parametrize("nodes", [0, 3])
def test_without_edges_all_sums_are_zero(nodes):
    none = torch.zeros(0, dtype=torch.int64)
    edges = Edges(none, none, torch.zeros(nodes + 1, dtype=torch.int64))
    assert torch.equal(softmax_aggregate(torch.zeros(0, 4), edges), torch.zeros(nodes, 4))
    for table in (torch.zeros(0, 4), torch.ones(2, 4)):
        assert torch.equal(segment_sum(table, none, edges.offsets), torch.zeros(nodes, 4))
        sums = class_sum(table.expand(5, -1, -1), edges, torch.zeros(5, 0))
        assert torch.equal(sums, torch.zeros(5, nodes, 4))


@given(st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_a_class_sum_adds_each_class_s_weighted_rows(seed, count):
    rng = np.random.default_rng(seed)
    edges = edges_of(rng, count, 7)
    table = torch.from_numpy(rng.normal(size=(4, 9, 3)))
    weights = torch.from_numpy(rng.normal(size=(4, count)))
    expected = torch.zeros(4, 7, 3, dtype=torch.float64)
    expected.index_add_(1, edges.target, table[:, edges.source] * weights[..., None])
    torch.testing.assert_close(class_sum(table, edges, weights), expected)


@pytest.mark.parametrize("classes", [(), (5,)])
@pytest.mark.parametrize("planes", [1, 3])
def test_a_layer_by_plane_takes_the_weights_of_the_plane(classes, planes):
    sizes = (2, 0, 4)
    weight, bias = torch.rand(planes, *classes, 8, 7), torch.rand(planes, *classes, 8)
    x = torch.rand(*classes, 6, 7)
    y = PlaneLinear(weight, bias)(x, sizes)
    for row, plane in enumerate(np.repeat(range(3), sizes)):
        own = plane if planes > 1 else 0
        expected = (weight[own] @ x[..., row, :, None])[..., 0] + bias[own]
        torch.testing.assert_close(y[..., row, :], expected)


@pytest.mark.parametrize("nexus", ["sum", "joint"])
def test_edges_of_a_batch_are_sorted_by_the_node_that_receives(nexus):
    rng, card = np.random.default_rng(1), card_of("24.7.1")
    card = replace(card, network=replace(card.network, nexus=nexus))
    events = [
        random_event(rng, hits, schema=card.schema, duplicates=True) for hits in (50, 0, 7, 120)
    ]
    batch = collate([build_graph(event, card) for event in events], card)
    kinds = (batch.planar, batch.up, batch.down, batch.to_event, batch.from_event)
    spacepoints = sum(event.num_spacepoints for event in events)
    assert [len(kind.offsets) - 1 for kind in kinds] == [
        177,
        spacepoints * (3 if nexus == "sum" else 1),
        177,
        4,
        spacepoints,
    ]
    for source, target, offsets in kinds:
        assert len(source) == len(target) == offsets[-1]
        assert (target.diff() >= 0).all()
        assert torch.equal(offsets.diff(), torch.bincount(target, minlength=len(offsets) - 1))
        assert offsets[0] == 0


def test_a_batch_normalises_like_nugraph_and_keeps_the_order_of_the_hits():
    card = card_of("24.7.1")
    graph = build_graph(random_event(np.random.default_rng(4), 90, schema=card.schema), card)
    batch = collate([graph, graph], card)
    own = np.split(graph.features, np.cumsum(graph.plane_sizes)[:-1])
    expected = []
    for features, norm in zip(own, NORMALISATION.values(), strict=True):
        mean, std = np.array(norm.mean, np.float32), np.array(norm.std, np.float32)
        expected += 2 * [(features - mean) / std]
    np.testing.assert_array_equal(batch.features.numpy(), np.concatenate(expected))
    raw = collate([graph], replace(card, normalisation=None))
    np.testing.assert_array_equal(raw.features.numpy(), graph.features)
