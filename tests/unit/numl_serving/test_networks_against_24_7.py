"""The networks, in PyTorch and in the native library, answer as nugraph 24.7.1's own models do.

The library's arithmetic is float32, so its yardstick is nugraph's own: with the weights of a
training every entry is within 1e-5 of its scale, or as near as nugraph in float32 comes.
"""

import numpy as np
import pytest
import torch
from cases import (
    CASES24,
    FIRST_SECOND,
    SCATTERED,
    Case,
    exact_and_rounded,
    native,
    network,
    reference,
    simulate_event,
    trained24,
)
from comparing import RANDOM, assert_as_near_as_nugraph, differences
from hypothesis import given, settings
from hypothesis import strategies as st
from numl_bench.reference24 import Reference24
from numl_serving.event import Event
from numl_serving.native import NativeModel
from oracle import KINDS, answer, card_of
from oracle25 import simulated

EVENTS = settings(max_examples=8, deadline=None)


def assert_equal_answers(case: Case, seed: int, event: Event) -> None:
    """Check PyTorch in float64, and the native library by nugraph's own error in float32."""
    exact, rounded = exact_and_rounded(case, seed, event)
    assert differences(exact, network(case, seed, torch.float64).answer([event]), 1e-9) == []
    assert_as_near_as_nugraph(exact, rounded, native(case, seed).infer(event), RANDOM)


@pytest.mark.parametrize("case", CASES24, ids=str)
@EVENTS
@given(scattered=SCATTERED)
def test_answers_equal_those_of_nugraph(case, scattered):
    assert_equal_answers(case, scattered.seed % 3, scattered.event(case.card.schema))


def test_a_vertex_that_nugraph_happens_to_round_hardly_at_all_is_no_fault_of_ours():
    """In other orders of its edges it is off 20 times as much."""
    case = Case("per-plane", FIRST_SECOND)
    assert_equal_answers(case, 2, case.event(774570533, 376))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_a_large_event_equal_those_of_nugraph(kind):
    case = Case(kind)
    assert_equal_answers(case, 0, case.event(2000, 2000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hits", [(100, 200), (900, 1300)])
def test_answers_of_imported_weights_equal_those_of_the_model_that_was_trained(kind, hits):
    card, (state, weights) = card_of(kind), trained24(kind)
    event = simulated(simulate_event(8, 1, hits), card.schema)
    answers = []
    for dtype in (torch.float64, torch.float32):
        nugraph = Reference24(card, weights, dtype)
        nugraph.model.load_state_dict(state)
        answers.append(answer(nugraph, event))
    exact, single = answers
    assert_as_near_as_nugraph(exact, [single], NativeModel(card, weights).infer(event))


@pytest.mark.parametrize("kind", KINDS)
def test_torch_and_native_library_are_near_nugraph_in_double_precision(kind):
    case = Case(kind)
    event = case.event(9, 150, positions=True)
    expected = answer(reference(case, 1, torch.float64), event)
    assert differences(expected, network(case, 1, torch.float32).answer([event]), 1e-4) == []
    assert differences(expected, native(case, 1).infer(event), 1e-4) == []


@pytest.mark.parametrize("kind", KINDS)
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([0, 1, 3, 40, 130]), min_size=2, max_size=5),
)
def test_events_in_a_batch_get_the_answers_they_get_alone(kind, seed, sizes):
    case = Case(kind)
    ours = network(case, 1, torch.float64)
    events = [
        case.event(seed + number, hits, positions=hits == 40) for number, hits in enumerate(sizes)
    ]
    together = ours.answer(events)
    alone = [ours.answer([event]) for event in events]
    joined = {name: np.concatenate([each[name] for each in alone]) for name in together}
    assert differences(joined, together, 1e-9) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [1e6, 1e15, 1e30])
def test_huge_times_stay_finite_where_nugraph_stays_finite(kind, time):
    case = Case(kind)
    event = case.event(3, 80, duplicates=True)
    columns = event.tensors()
    some = np.arange(80) % 7 == 0
    times = np.where(some, time, columns["hit_table_local_time"]).astype(np.float32)
    event = Event.from_tensors(columns | {"hit_table_local_time": times}, event.schema)
    expected = answer(reference(case, 0, torch.float64), event)
    assert all(np.isfinite(array).all() for array in expected.values())
    ours = network(case, 0, torch.float64).answer([event])
    assert differences(expected, ours, 1e-9) == []
