"""The arithmetic that the networks share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numl_serving.graph import build_graph
from numl_serving.networks.common import (
    collate,
    mish,
    segment_sum,
    segment_weighted_sum,
    softmax_aggregate,
)
from oracle import NORMALISATION, random_event
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import SoftmaxAggregation


def segments(rng: np.random.Generator, rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the sorted segment of each row, and the segments' offsets."""
    segment = np.sort(rng.integers(0, count, rows)) if count else np.empty(0, np.int64)
    offsets = np.searchsorted(segment, np.arange(count + 1))
    return torch.from_numpy(segment), torch.from_numpy(offsets)


@given(
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=20),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_mish_equals_torchs(values: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor(values, dtype=dtype)
    torch.testing.assert_close(mish(x), functional.mish(x), rtol=2e-6, atol=1e-37)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 60),
    count=st.integers(1, 20),
    scale=st.sampled_from([0.0, 1.0, 100.0, 1e30]),
)
def test_softmax_aggregate_equals_that_of_pytorch_geometric(
    seed: int, rows: int, count: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    segment, offsets = segments(rng, rows, count)
    messages = torch.from_numpy(scale * rng.normal(size=(rows, 5)))
    expected = SoftmaxAggregation()(messages, segment, dim_size=count, dim=0)
    actual = softmax_aggregate(messages, segment, offsets)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12 * max(scale, 1e-3))


@pytest.mark.parametrize("count", [0, 3])
def test_without_rows_all_sums_are_zero(count: int) -> None:
    segment, offsets = torch.zeros(0, dtype=torch.int64), torch.zeros(count + 1, dtype=torch.int64)
    values = torch.zeros(0, 4)
    zero = torch.zeros(count, 4)
    assert torch.equal(segment_sum(values, offsets), zero)
    assert torch.equal(softmax_aggregate(values, segment, offsets), zero)
    for table in (values, torch.ones(2, 4)):
        weighted = segment_weighted_sum(table, segment, torch.zeros(0), offsets)
        assert torch.equal(weighted, zero)


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_weighted_sum_equals_the_sum_of_weighted_rows(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    _, offsets = segments(rng, rows, 7)
    table = torch.from_numpy(rng.normal(size=(9, 3)))
    source = torch.from_numpy(rng.integers(0, 9, rows))
    weights = torch.from_numpy(rng.normal(size=rows))
    expected = segment_sum(table[source] * weights[:, None], offsets)
    torch.testing.assert_close(segment_weighted_sum(table, source, weights, offsets), expected)


@given(st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_a_sum_takes_each_edge_s_row_of_the_table(seed: int, edges: int) -> None:
    rng = np.random.default_rng(seed)
    _, offsets = segments(rng, edges, 7)
    table = torch.from_numpy(rng.normal(size=(9, 3)))
    source = torch.from_numpy(rng.integers(0, 9, edges))
    expected = segment_sum(table[source], offsets)
    torch.testing.assert_close(segment_sum(table, offsets, source), expected)


def test_edges_of_a_batch_are_sorted_by_the_node_that_receives() -> None:
    rng = np.random.default_rng(1)
    graphs = [build_graph(random_event(rng, n, duplicates=True)) for n in (50, 0, 7, 120)]
    batch = collate(graphs, NORMALISATION)
    for target, offsets in (
        (batch.edge_target, batch.edge_offsets),
        (batch.up_segment, batch.up_offsets),
        (batch.down_hit, batch.down_offsets),
        (batch.spacepoint_event, batch.spacepoint_offsets),
    ):
        assert (target.diff() >= 0).all()
        count = torch.bincount(target, minlength=len(offsets) - 1)
        assert torch.equal(offsets.diff(), count)
        assert offsets[0] == 0


def test_a_batch_normalises_like_nugraph_and_keeps_the_order_of_the_hits() -> None:
    event = random_event(np.random.default_rng(4), 90)
    graph = build_graph(event)
    batch = collate([graph, graph], NORMALISATION)
    for features, plane, norm in zip(
        batch.features, graph.planes, NORMALISATION.values(), strict=True
    ):
        mean, std = np.array(norm.mean, np.float32), np.array(norm.std, np.float32)
        expected = (plane.features - mean) / std
        np.testing.assert_array_equal(features.numpy(), np.concatenate([expected, expected]))


def test_positions_are_zero_where_they_are_not_wanted() -> None:
    graph = build_graph(random_event(np.random.default_rng(4), 90, positions=True))
    assert collate([graph], NORMALISATION).spacepoint_position.any()
    assert not collate([graph], NORMALISATION, positions=False).spacepoint_position.any()
