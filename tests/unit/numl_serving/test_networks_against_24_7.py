"""The networks, in PyTorch and in the native library, answer as nugraph 24.7.1's own models do."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from comparing import differences
from hypothesis import given, settings
from hypothesis import strategies as st
from networks_under_test import Network
from numl_bench.reference import Reference
from numl_serving.event import Event
from numl_serving.native import NativeModel
from oracle import KINDS, UVY, answer, card_of, random_event, random_weights

EVENTS = settings(max_examples=12, deadline=None)

Case = tuple[str, tuple[str, ...], tuple[str, ...]]
COMMON = ("integral", "rms")
CASES: list[Case] = [
    *((kind, UVY, COMMON) for kind in KINDS),
    *((kind, ("first", "second"), COMMON) for kind in KINDS),
    *((kind, ("u", "v", "w", "y"), (*COMMON, "tpc", "width")) for kind in KINDS),
]
"""Generation, planes, and features after those of the position."""


@cache
def pair(case: Case, seed: int, dtype: torch.dtype) -> tuple[Reference, Network]:
    card = card_of(*case)
    weights = random_weights(card, seed)
    return Reference(card, weights, dtype), Network(card, weights, dtype)


def event_for(case: Case, seed: int, hits: int, **more: object) -> Event:
    return random_event(np.random.default_rng(seed), hits, schema=card_of(*case).schema, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_answers_depend_on_every_part_of_the_graph(kind: str) -> None:
    case = (kind, UVY, COMMON)
    reference, _ = pair(case, 0, torch.float32)
    event = event_for(case, 0, 200, positions=kind == "24.7.1")
    expected = answer(reference, event)["x_semantic_u"]
    columns = event.tensors()
    in_u = columns["hit_table_local_plane"] == 0
    changed = [
        {n: a[:0] if n.startswith("spacepoint") else a for n, a in columns.items()},
        columns | {"hit_table_local_time": np.where(in_u, 7, columns["hit_table_local_time"])},
    ]
    if kind == "24.7.1":
        changed.append({n: a for n, a in columns.items() if "position" not in n})
    for each in changed:
        tensors = {name: array.astype(columns[name].dtype) for name, array in each.items()}
        other = answer(reference, Event.from_tensors(tensors, event.schema))["x_semantic_u"]
        assert np.abs(other - expected).max() > 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}-planes")
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    hits=st.integers(0, 400),
    without=st.sampled_from([None, None, 0, 1]),
    positions=st.booleans(),
    duplicates=st.booleans(),
)
def test_answers_equal_those_of_nugraph(
    case: Case, seed: int, hits: int, without: int | None, positions: bool, duplicates: bool
) -> None:
    event = event_for(
        case,
        seed,
        hits,
        planes=[plane for plane in range(len(case[1])) if plane != without],
        positions=positions and case[0] == "24.7.1",
        duplicates=duplicates,
    )
    reference, network = pair(case, seed % 3, torch.float64)
    assert differences(answer(reference, event), network.answer([event]), 1e-9) == []


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_a_large_event_equal_those_of_nugraph(kind: str) -> None:
    case = (kind, UVY, COMMON)
    event = event_for(case, 5, 5000)
    reference, network = pair(case, 0, torch.float64)
    assert differences(answer(reference, event), network.answer([event]), 1e-9) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}-planes")
@pytest.mark.parametrize("hits", [0, 1, 2, 60, 600])
def test_torch_and_native_library_are_near_nugraph_in_double_precision(
    case: Case, hits: int
) -> None:
    event = event_for(case, 9, hits, positions=case[0] == "24.7.1")
    expected = answer(pair(case, 1, torch.float64)[0], event)
    assert differences(expected, pair(case, 1, torch.float32)[1].answer([event]), 1e-4) == []
    card = card_of(*case)
    native = NativeModel(card, random_weights(card, 1))
    assert differences(expected, native.infer(event), 1e-4) == []


@pytest.mark.parametrize("kind", KINDS)
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([0, 1, 3, 40, 130]), min_size=2, max_size=5),
)
def test_events_in_a_batch_get_the_answers_they_get_alone(
    kind: str, seed: int, sizes: list[int]
) -> None:
    case = (kind, UVY, COMMON)
    _, network = pair(case, 1, torch.float64)
    positions = kind == "24.7.1"
    events = [
        event_for(case, seed + number, hits, positions=positions and hits == 40)
        for number, hits in enumerate(sizes)
    ]
    together = network.answer(events)
    alone = [network.answer([event]) for event in events]
    joined = {name: np.concatenate([each[name] for each in alone]) for name in together}
    assert differences(joined, together, 1e-9) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [1e6, 1e15, 1e30])
def test_huge_times_stay_finite_where_nugraph_stays_finite(kind: str, time: float) -> None:
    case = (kind, UVY, COMMON)
    event = event_for(case, 3, 80, duplicates=True)
    columns = event.tensors()
    some = np.arange(80) % 7 == 0
    times = np.where(some, time, columns["hit_table_local_time"]).astype(np.float32)
    event = Event.from_tensors(columns | {"hit_table_local_time": times}, event.schema)
    reference, network = pair(case, 0, torch.float64)
    expected = answer(reference, event)
    assert all(np.isfinite(array).all() for array in expected.values())
    assert differences(expected, network.answer([event]), 1e-9) == []
