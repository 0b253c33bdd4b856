"""The networks answer as nugraph 25.4.0's own models do on pynuml 25.4.0's own graphs.

In PyTorch in double precision; in the native library with the clusters.
"""

from itertools import product, tee

import pytest
from cases import (
    KINDS25,
    LAYOUTS,
    MODELS,
    SCATTERED,
    Network,
    Scattered,
    exact_network,
    packaged25,
    random25,
    simulate_event,
    trained25,
    without_clusters,
)
from comparing import RANDOM, assert_as_near_as_nugraph, differences
from hypothesis import example, given, settings
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.weights import read_weights
from oracle25 import Model25, simulated
from small_models import random_event

from numl_formats.cardfile import read_card

EVENTS = settings(max_examples=10, deadline=None)
LUCKY = Scattered(seed=2410, hits=8, without=0, positions=False, duplicates=False)
"""Of these few hits nugraph happens to round the classes hardly at all."""


def assert_equal_answers(model: Model25, event: Event, factor: float) -> None:
    """Check PyTorch in float64, and the native library by nugraph's own error in float32."""
    answer, rounded = model.exact_and_rounded(event)
    exact = without_clusters(answer)
    assert differences(exact, exact_network(model).answer([event]), 1e-9) == []
    actual = without_clusters(model.native.infer(event))
    assert actual.keys() == exact.keys()
    assert_as_near_as_nugraph(exact, rounded, actual, factor)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@EVENTS
@given(scattered=SCATTERED)
@example(scattered=LUCKY)
def test_answers_equal_those_of_nugraph(layout, scattered):
    assert_equal_answers(random25(layout), scattered.event(layout.schema), RANDOM)


@pytest.mark.parametrize("kind", KINDS25)
@pytest.mark.parametrize("hits", [(100, 200), (900, 1300)])
def test_answers_of_trained_weights_equal_those_of_nugraph(kind, hits):
    model = trained25(kind)
    event = simulated(simulate_event(8, 1, hits), model.layout.schema)
    assert_equal_answers(model, event, factor=1)


@pytest.mark.parametrize("kind", KINDS25)
def test_answers_to_a_large_event_equal_those_of_nugraph(kind):
    model = trained25(kind)
    event = random_event(5, 2000, schema=model.layout.schema)
    ours = exact_network(model).answer([event])
    assert differences(without_clusters(model.answer(event)), ours, 1e-9) == []


@pytest.mark.parametrize(
    ("kind", "hits"),
    # What is added up over all spacepoints, for the event and its vertex, is off most in the last.
    [*product(KINDS25, [(100, 200), (900, 1300)]), ("nugraph3", (3000, 6000))],
)
def test_the_weights_of_the_repository_give_nugraph_s_answers(kind, hits):
    folder = MODELS / kind / "1"
    card = read_card(folder / "model.json")
    event = simulated(simulate_event(8, 1, hits), card.schema)
    exact, rounded = packaged25(kind).exact_and_rounded(event)
    served = NativeModel(card, read_weights(folder, card)).infer(event)
    assert_as_near_as_nugraph(exact, rounded, served)


@pytest.mark.parametrize("kind", KINDS25)
def test_torch_and_native_library_are_as_near_trained_nugraph_as_its_own_single_precision(kind):
    model = trained25(kind)  # on this machine: how much a rounding grows differs by it
    network = Network(model.card, model.weights)
    for number in range(1, 4):
        event = simulated(simulate_event(8, number, (300, 500)), model.layout.schema)
        exact, rounded = model.exact_and_rounded(event)
        rounded, again = tee(rounded)
        assert_as_near_as_nugraph(exact, rounded, model.native.infer(event), RANDOM)
        exact = without_clusters(exact)
        assert_as_near_as_nugraph(exact, again, network.answer([event]), RANDOM)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("hits", [0, 1, 2, 7, 60])
def test_the_native_library_takes_every_layout(layout, hits):
    model = random25(layout)
    event = random_event(hits, hits, schema=layout.schema)
    # NuGraph2 of 25.4 is given raw features in each iteration: with random weights nugraph's own
    # answers in single precision are off by 3e-4.
    tolerance = 1e-4 if layout.kind == "nugraph3" else 1e-3
    assert differences(model.answer(event), model.native.infer(event), tolerance) == []
