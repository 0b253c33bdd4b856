"""What the networks are made of, and the way of a batch to a device and back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numl_serving.graph import build_graph
from numl_serving.networks.batch import Edges, collate
from numl_serving.networks.layers import class_sum, segment_sum, softmax_aggregate
from numl_serving.transfer import Transfer
from oracle import card_of
from small_models import random_event
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


# The way to a device and back is walked on a CPU: the same copies and views, without the stream
# and the pinned memory of a GPU.


def test_a_batch_arrives_on_a_device_as_it_was():
    transfer, card, rng = Transfer(torch.device("cpu")), card_of("24.7.1"), np.random.default_rng(8)
    for sizes in ((40,), (300, 0, 5), (0,)):
        events = [random_event(rng, hits, schema=card.schema, positions=True) for hits in sizes]
        batch = collate([build_graph(event, card) for event in events], card)
        arrived = transfer.to_device(batch)
        assert arrived.plane_sizes == batch.plane_sizes
        for sent, found in zip(batch.tensors(), arrived.tensors(), strict=True):
            assert found.dtype == sent.dtype
            assert found.is_contiguous()
            torch.testing.assert_close(found, sent, rtol=0, atol=0)


def test_answers_come_back_by_name_and_stay_as_they_are():
    transfer = Transfer(torch.device("cpu"))
    outputs = {"a": torch.rand(3, 5), "b": torch.rand(0, 7), "c": torch.rand(4)}
    found = transfer.fetch(outputs)
    kept = {name: array.copy() for name, array in found.items()}
    transfer.fetch({name: tensor + 1 for name, tensor in outputs.items()})
    assert found.keys() == outputs.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, outputs[name].numpy())
        np.testing.assert_array_equal(array, kept[name])
        assert array.flags.c_contiguous
