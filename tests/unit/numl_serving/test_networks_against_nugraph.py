"""The networks give the answers of nugraph 24.7.1's own models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks_under_test import rewritten, run
from numl_serving.event import Event, HitTable
from numl_serving.golden import disagreements
from numl_serving.graph import build_graph
from numpy.typing import NDArray
from oracle import KINDS, answer, random_event, reference
from torch import nn

EVENTS = settings(max_examples=12, deadline=None)

model_of = cache(reference)


@cache
def network_of(kind: str, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    return rewritten(model_of(kind, seed), kind, dtype)


def assert_equal_within(
    tolerance: float, expected: dict[str, NDArray[Any]], actual: dict[str, NDArray[Any]]
) -> None:
    """Compare in units of each output's largest magnitude."""
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        scale = np.abs(array).max(initial=0)
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_answers_depend_on_every_part_of_the_graph(kind: str) -> None:
    event = random_event(np.random.default_rng(0), 200, positions=True)
    tensors = event.tensors()
    graph = build_graph(event)
    expected = answer(model_of(kind, 0), graph)
    without_spacepoints = build_graph(
        Event.from_tensors({n: a[: 0 if "spacepoint" in n else None] for n, a in tensors.items()})
    )
    without_positions = build_graph(
        Event.from_tensors({n: a for n, a in tensors.items() if "position" not in n})
    )
    plane = replace(graph.planes[0], edges=graph.planes[0].edges[:, ::2])
    without_edges = replace(graph, planes=(plane, *graph.planes[1:]))
    changed = [without_spacepoints, without_edges]
    if kind == "24.7.1":
        changed.append(without_positions)
    for other in changed:
        difference = answer(model_of(kind, 0), other)["x_semantic_u"] - expected["x_semantic_u"]
        assert np.abs(difference).max() > 0.01 * np.abs(expected["x_semantic_u"]).max()


@pytest.mark.parametrize("kind", KINDS)
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    hits=st.integers(0, 400),
    planes=st.sampled_from([(0, 1, 2), (0, 1, 2), (1,), (0, 2)]),
    positions=st.booleans(),
    duplicates=st.booleans(),
)
def test_answers_equal_those_of_nugraph(
    kind: str, seed: int, hits: int, planes: tuple[int, ...], positions: bool, duplicates: bool
) -> None:
    event = random_event(
        np.random.default_rng(seed),
        hits,
        planes=planes,
        positions=positions,
        duplicates=duplicates,
    )
    graph = build_graph(event)
    weights = seed % 3
    exact = answer(reference(kind, weights), graph, torch.float64)
    actual = run(network_of(kind, weights, torch.float64), [graph], torch.float64)
    assert_equal_within(1e-9, exact, actual)
    expected = answer(model_of(kind, weights), graph)
    assert disagreements(expected, run(network_of(kind, weights), [graph])) == []


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_a_large_event_equal_those_of_nugraph(kind: str) -> None:
    graph = build_graph(random_event(np.random.default_rng(5), 5000, positions=True))
    expected = answer(model_of(kind, 0), graph)
    assert disagreements(expected, run(network_of(kind, 0), [graph])) == []


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_within_1e_5_of_double_precision(kind: str) -> None:
    graph = build_graph(random_event(np.random.default_rng(9), 600))
    expected = answer(reference(kind, 4), graph, torch.float64)
    assert_equal_within(1e-5, expected, run(network_of(kind, 4), [graph]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_spacepoint_without_partners_changes_the_shape(kind: str) -> None:
    event = random_event(np.random.default_rng(2), 60)
    bare = Event.from_tensors(
        {n: a[:0] if n.startswith("spacepoint") else a for n, a in event.tensors().items()}
    )
    graph = build_graph(bare)
    assert disagreements(answer(model_of(kind, 0), graph), run(network_of(kind, 0), [graph])) == []


@pytest.mark.parametrize("kind", KINDS)
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([0, 1, 3, 40, 130]), min_size=2, max_size=5),
)
def test_events_in_a_batch_get_the_answers_they_get_alone(
    kind: str, seed: int, sizes: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    graphs = [build_graph(random_event(rng, size, positions=size == 40)) for size in sizes]
    network = network_of(kind, 1)
    together = run(network, graphs)
    alone = [run(network, [graph]) for graph in graphs]
    joined = {name: np.concatenate([each[name] for each in alone]) for name in together}
    assert disagreements(joined, together) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_without_hits_has_empty_planes_and_nugraphs_answer(kind: str) -> None:
    graph = build_graph(random_event(np.random.default_rng(0), 0))
    outputs = run(network_of(kind, 0), [graph])
    assert outputs["x_semantic_u"].shape == (0, 7 if kind == "per-plane" else 5)
    assert outputs["x_filter_y"].shape == (0,)
    assert disagreements(answer(model_of(kind, 0), graph), outputs) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [1e6, 1e15, 1e30])
def test_huge_times_stay_finite_where_nugraph_stays_finite(kind: str, time: float) -> None:
    event = random_event(np.random.default_rng(3), 80, duplicates=True)
    columns = {name: getattr(event.hits, name) for name in HitTable.__slots__}
    some = np.arange(80) % 7 == 0
    columns["local_time"] = np.where(some, time, columns["local_time"]).astype(np.float32)
    graph = build_graph(Event(HitTable(**columns), event.spacepoints))
    expected = answer(model_of(kind, 0), graph)
    actual = run(network_of(kind, 0), [graph])
    assert all(np.isfinite(array).all() for array in expected.values())
    assert disagreements(expected, actual) == []
