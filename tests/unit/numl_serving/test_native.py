"""The native library gives the answers of nugraph's own models in float64.

Its arithmetic is float32, so the yardstick is nugraph's own: with the weights of a training every
entry is within 1e-5 of its scale, or as near as nugraph in float32 comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import differences, largest_error
from hypothesis import given, settings
from hypothesis import strategies as st
from numl_bench.reference import Reference
from numl_demo.simulate import simulate_event
from numl_serving.cardfile import read_card
from numl_serving.event import Event
from numl_serving.modelcard import ModelCard
from numl_serving.native import NativeModel
from numl_serving.weights import read_weights
from numpy.typing import NDArray
from oracle import KINDS, UVY, answer, card_of, random_event, random_weights
from oracle25 import Layout, Model25, Server, simulated

EVENTS = settings(max_examples=8, deadline=None)
MODELS = Path(__file__).resolve().parents[3] / "model_repository"

Answer = Mapping[str, NDArray[Any]]

COMMON = ("integral", "rms")
CASES24 = [
    *((kind, UVY, COMMON) for kind in KINDS),
    *((kind, ("first", "second"), COMMON) for kind in KINDS),
    *((kind, ("u", "v", "w", "y"), (*COMMON, "tpc", "width")) for kind in KINDS),
]
"""Generation, planes, and features after those of the position."""

CASES25 = [
    Layout(kind, columns=columns, planes=planes, generation=generation)
    for kind in ("nugraph3", "nugraph2")
    for columns, planes, generation in (
        (COMMON, UVY, 1),
        (COMMON, ("first", "second"), 2),
        ((*COMMON, "tpc"), UVY, 2),
        ((*COMMON, "tpc", "width"), ("u", "v", "w", "y"), 2),
    )
]
"""4, 5, 7, 8 and 9 hit features; two, three and four planes."""


def assert_as_near_as_nugraph(exact: Answer, single: Answer, actual: Answer) -> None:
    """Check an answer against nugraph's in float64, with an allowance for float32.

    It is 1e-5 of each entry's scale, or twice what nugraph in float32 is off in the output.
    """
    assert exact.keys() <= actual.keys()
    for name, wanted in exact.items():
        tolerance = max(1e-5, 2 * largest_error(wanted, single[name]))
        assert differences({name: wanted}, {name: actual[name]}, tolerance) == []


@cache
def models24(case: Any, seed: int) -> tuple[Reference, Reference, NativeModel]:
    card = card_of(*case)
    weights = random_weights(card, seed)
    exact, single = (Reference(card, weights, dtype) for dtype in (torch.float64, torch.float32))
    return exact, single, NativeModel(card, weights)


@pytest.mark.parametrize("case", CASES24, ids=lambda case: f"{case[0]}-{len(case[1])}-planes")
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    hits=st.integers(0, 400),
    without=st.sampled_from([None, None, 0, 1]),
    positions=st.booleans(),
    duplicates=st.booleans(),
)
def test_answers_equal_those_of_nugraph_24_7(
    case: Any, seed: int, hits: int, without: int | None, positions: bool, duplicates: bool
) -> None:
    exact, single, native = models24(case, seed % 2)
    event = random_event(
        np.random.default_rng(seed),
        hits,
        schema=native.card.schema,
        planes=[plane for plane in range(len(case[1])) if plane != without],
        positions=positions and case[0] == "24.7.1",
        duplicates=duplicates,
    )
    assert_as_near_as_nugraph(answer(exact, event), answer(single, event), native.infer(event))


@pytest.mark.parametrize("hits", [1300, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_a_large_event_equal_those_of_nugraph_24_7(kind: str, hits: int) -> None:
    exact, single, native = models24((kind, UVY, COMMON), 0)
    event = random_event(np.random.default_rng(hits), hits, schema=native.card.schema)
    assert_as_near_as_nugraph(answer(exact, event), answer(single, event), native.infer(event))


def trained24(name: str) -> tuple[ModelCard, dict[str, NDArray[np.float32]]]:
    folder = MODELS / name / "1"
    card = read_card(folder / "model.json")
    return card, read_weights(folder, card)


@pytest.mark.parametrize("name", ["nugraph3", "nugraph2"])
@pytest.mark.parametrize("hits", [(100, 200), (900, 1300), (3000, 6000)])
def test_trained_weights_of_24_7_give_nugraph_s_answers(name: str, hits: tuple[int, int]) -> None:
    card, weights = trained24(name)
    event = simulated(simulate_event(8, 1, hits), card.schema)
    exact, single = (
        answer(Reference(card, weights, dtype), event) for dtype in (torch.float64, torch.float32)
    )
    assert_as_near_as_nugraph(exact, single, NativeModel(card, weights).infer(event))


@dataclass
class Models:
    """nugraph 25.4's models, each made when a test first asks for it."""

    server: Server
    made: dict[Any, tuple[Model25, NativeModel]] = field(default_factory=dict)

    def random(self, layout: Layout) -> tuple[Model25, NativeModel]:
        if layout not in self.made:
            rng = np.random.default_rng(3)
            events = [random_event(rng, 250, schema=layout.schema) for _ in range(2)]
            model = self.server.make(layout, events, gain=2.3, seed=0)
            self.made[layout] = model, NativeModel(model.card, model.weights)
        return self.made[layout]

    def trained(self, kind: str) -> tuple[Model25, NativeModel]:
        if kind not in self.made:
            events = [simulate_event(5, number, (100, 200)) for number in range(1, 10)]
            model = self.server.train(Layout(kind), events, steps=20, seed=1)
            self.made[kind] = model, NativeModel(model.card, model.weights)
        return self.made[kind]


@pytest.fixture(scope="module")
def models25() -> Iterator[Models]:
    with Server() as server:
        yield Models(server)


def of_the_network(answer: Answer) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in answer.items() if not name.startswith("x_i_")}


def assert_equal_to_25(pair: tuple[Model25, NativeModel], event: Event) -> None:
    model, native = pair
    exact, single = (of_the_network(model.answer(event, double=d)) for d in (True, False))
    actual = native.infer(event)
    assert of_the_network(actual).keys() == exact.keys()
    assert_as_near_as_nugraph(exact, single, actual)


@pytest.mark.parametrize("layout", CASES25, ids=str)
@EVENTS
@given(
    seed=st.integers(0, 2**32 - 1),
    hits=st.integers(0, 300),
    without=st.sampled_from([None, None, 0, 1]),
    duplicates=st.booleans(),
)
def test_answers_equal_those_of_nugraph_25_4(
    layout: Layout, models25: Models, seed: int, hits: int, without: int | None, duplicates: bool
) -> None:
    event = random_event(
        np.random.default_rng(seed),
        hits,
        schema=layout.schema,
        planes=[plane for plane in range(len(layout.planes)) if plane != without],
        duplicates=duplicates,
    )
    assert_equal_to_25(models25.random(layout), event)


@pytest.mark.parametrize("kind", ["nugraph3", "nugraph2"])
@pytest.mark.parametrize("hits", [(100, 200), (900, 1300), (3000, 6000)])
def test_trained_weights_of_25_4_give_nugraph_s_answers(
    kind: str, models25: Models, hits: tuple[int, int]
) -> None:
    pair = models25.trained(kind)
    assert_equal_to_25(pair, simulated(simulate_event(8, 1, hits), pair[1].card.schema))
