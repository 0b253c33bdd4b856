"""The models and the events for which answers are compared with nugraph's own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from checkpoint_files import architecture, model24, recognised, served
from edge_orders import ORDERS, reordered
from hypothesis import strategies as st
from numl_bench.reference24 import Reference24
from numl_bench.reference24 import answer as nugraph24
from numl_demo.simulate import simulate_event as simulate_anew
from numl_serving.event import Event
from numl_serving.graph import build_graph
from numl_serving.native import NativeModel
from numl_serving.networks import build_network, collate
from numpy.typing import NDArray
from oracle import KINDS, UVY, card_of, random_weights
from oracle25 import Layout, Model25, server
from small_models import random_event

from numl_formats.card import ModelCard
from numl_formats.contract import Schema

MODELS = Path(__file__).resolve().parents[3] / "model_repository"
COMMON = ("integral", "rms")
FIRST_SECOND = ("first", "second")
WUVY = ("u", "v", "w", "y")

Answer = Mapping[str, NDArray[Any]]

simulate_event = cache(simulate_anew)
"""Each event once: it takes up to a second until one of the size comes up."""


@dataclass(frozen=True)
class Scattered:
    """A scattered event, whatever the columns of the request are.

    Attributes:
        without: The plane without hits, if any.
        positions: Whether spacepoints carry positions, where the schema has any.
        duplicates: Whether hit ids repeat.
    """

    seed: int
    hits: int
    without: int | None
    positions: bool
    duplicates: bool

    def event(self, schema: Schema) -> Event:
        """Make the event."""
        return random_event(
            self.seed,
            self.hits,
            schema=schema,
            planes=[plane for plane in range(len(schema.planes)) if plane != self.without],
            positions=self.positions,
            duplicates=self.duplicates,
        )


class Network:
    """A network of ours in PyTorch, with its card."""

    def __init__(
        self,
        card: ModelCard,
        weights: Mapping[str, NDArray[np.float32]],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.card, self.dtype = card, dtype
        self.module = build_network(card, weights).to(dtype)

    def answer(self, events: Sequence[Event]) -> dict[str, NDArray[Any]]:
        """Answer a batch of events; returns arrays by output name."""
        batch = collate([build_graph(event, self.card) for event in events], self.card)
        with torch.inference_mode():
            outputs = self.module(batch.to(self.dtype))
        return {name: tensor.numpy() for name, tensor in outputs.items()}


TRAINING_STEPS = 8
"""So many make weights that answer one hit otherwise than another; more only take longer."""

TRAINING_HITS = (100, 300)
"""Of the events; until each of nine has come up within half the range, it takes eight seconds."""

SCATTERED = st.builds(
    Scattered,
    seed=st.integers(0, 2**32 - 1),
    hits=st.integers(0, 150),
    without=st.sampled_from([None, None, 0, 1]),
    positions=st.booleans(),
    duplicates=st.booleans(),
)

# ---- nugraph 24.7.1 and before


class Case(NamedTuple):
    """A model of 24.7.1 or before, in its default widths.

    Attributes:
        kind: One of `oracle.KINDS`.
        features: Hit features after those of the position.
    """

    kind: str
    planes: tuple[str, ...] = UVY
    features: tuple[str, ...] = COMMON

    def __str__(self) -> str:
        return f"{self.kind}-{len(self.planes)}-planes"

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return card_of(*self)

    def event(self, seed: int, hits: int, **more: Any) -> Event:
        """Make a scattered event for it."""
        return random_event(seed, hits, schema=self.card.schema, **more)


CASES24 = [
    *(Case(kind) for kind in KINDS),
    *(Case(kind, FIRST_SECOND) for kind in KINDS),
    *(Case(kind, WUVY, (*COMMON, "tpc", "width")) for kind in KINDS),
]


@cache
def reference(case: Case, seed: int, dtype: torch.dtype) -> Reference24:
    """Return nugraph's own model with random weights."""
    return Reference24(case.card, random_weights(case.card, seed), dtype)


@cache
def network(case: Case, seed: int, dtype: torch.dtype) -> Network:
    """Return our network in PyTorch with the same weights."""
    return Network(case.card, random_weights(case.card, seed), dtype)


@cache
def native(case: Case, seed: int) -> NativeModel:
    """Return the native library's network with the same weights."""
    return NativeModel(case.card, random_weights(case.card, seed))


@cache
def trained24(kind: str) -> tuple[Mapping[str, torch.Tensor], Mapping[str, NDArray[np.float32]]]:
    """Train a model of 24.7.1 or before for a few steps; return its state, and what is imported."""
    card = card_of(kind)
    reference = Reference24(card, random_weights(card, 0))
    model = reference.model
    model.load_state_dict(model24(kind).state_dict(), strict=False)  # what a training starts from
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(1, TRAINING_STEPS + 1):
        event = simulate_event(5, number, TRAINING_HITS).request()
        answered = nugraph24(model, reference.preprocess(event), card.planes)
        # Any truth will do that a hit's features say something of.
        loss = torch.zeros(())
        for index, plane in enumerate(card.planes):
            hits = torch.tensor(event["hit_table_rms"][event["hit_table_local_plane"] == index])
            loss = loss + torch.nn.functional.cross_entropy(
                answered[f"x_semantic_{plane}"], hits.long().clamp(0, 4)
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = model.state_dict()
    found = served(state)
    return state, recognised(found, architecture(kind)).weights(found)


def exact_and_rounded(case: Case, seed: int, event: Event) -> tuple[Answer, Iterator[Answer]]:
    """Return nugraph's own answer in float64, and those in float32, each of another rounding."""
    exact, single = (reference(case, seed, dtype) for dtype in (torch.float64, torch.float32))
    graph = exact.preprocess(event.tensors())  # its numbers are those of float32
    rounded = graph.clone().apply(lambda each: each.float() if each.is_floating_point() else each)
    answers = (
        single.network(reordered(rounded, order), gradients=False) for order in range(ORDERS)
    )
    return exact.network(graph, gradients=False), answers


# ---- nugraph 25.4

KINDS25 = ("nugraph3", "nugraph2")
LAYOUTS = [
    layout
    for kind in KINDS25
    for layout in (
        Layout(kind),
        Layout(kind, columns=COMMON, generation=1),
        Layout(kind, columns=COMMON, planes=FIRST_SECOND),
        Layout(kind, columns=(*COMMON, "tpc", "width"), planes=WUVY),
    )
]
"""4, 5, 7, 8 and 9 hit features; two, three and four planes."""


@cache
def random25(layout: Layout) -> Model25:
    """Return a model with random weights."""
    rng = np.random.default_rng(3)
    events = [random_event(rng, 250, schema=layout.schema) for _ in range(2)]
    return server().make(layout, events, gain=2.3, seed=0)


@cache
def trained25(kind: str) -> Model25:
    """Return a model that nugraph has trained for a few steps."""
    events = [simulate_event(5, number, TRAINING_HITS) for number in range(1, 10)]
    return server().train(Layout(kind), events, TRAINING_STEPS, seed=1)


@cache
def exact_network(model: Model25) -> Network:
    """Return our network in PyTorch, in double precision, with a model's weights."""
    return Network(model.card, model.exact, torch.float64)


@cache
def packaged25(kind: str) -> Model25:
    """Return the model of the repository."""
    return server().load(MODELS / kind / "1")


def without_clusters(answer: Answer) -> dict[str, NDArray[Any]]:
    """Leave out the clusters, which are not the network's."""
    return {name: array for name, array in answer.items() if not name.startswith("x_i_")}
