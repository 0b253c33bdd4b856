"""pynuml 25.4.0 makes the graph, nugraph 25.4.0's own model answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numl_demo.graphs import request_event, scale_positions
from numl_demo.oracle import (
    ADDED,
    Network,
    NuGraph2,
    NuGraph3,
    NuGraphData,
    answer,
    make_graph,
    producer,
    transformed,
)
from numpy.typing import NDArray

from numl_formats.card import POSITION_FEATURES, ModelCard

from .measure import Outputs, Tensors
from .nugraph_names import with_weights


class Reference25:
    """NuGraph's own code with the weights of a model.

    Args:
        card: The model: one of nugraph 25.4.0.
        weights: Its weights.

    Attributes:
        model: nugraph's own model.
    """

    def __init__(self, card: ModelCard, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.card = card
        self.model = nugraph_model(card, weights)
        features = [name for name in card.hit_features if name not in POSITION_FEATURES]
        columns = [name for name in features if name not in ADDED]
        self._producer = producer(card.planes, columns)
        # Of what pynuml makes features, those that the model was trained with.
        self._taken = [(*columns, *ADDED).index(name) for name in features]

    def preprocess(self, tensors: Tensors) -> NuGraphData:
        """Make the graph of a request's tensors."""
        event = request_event(tensors)
        scale_positions(event, self.card.position_scale)
        data = make_graph(self._producer, event)
        data["hit"].x = data["hit"].x[:, self._taken]
        return transformed(type(self.model), data, self.card.planes)

    def network(self, data: NuGraphData, *, gradients: bool) -> Outputs:
        """Answer a graph, which the models change; see `numl_bench.reference.Reference`."""
        return answer(self.model, data, self.card.planes, gradients=gradients)


def nugraph_model(card: ModelCard, weights: Mapping[str, NDArray[np.float32]]) -> Network:
    """Return nugraph's own model with a model's weights."""
    spec, heads = card.network, {head.name: head for head in card.heads}
    sizes: dict[str, Any] = {
        "in_features": len(card.hit_features),
        "nexus_features": spec.nexus_width,
        "planes": list(card.planes),
        "num_iters": spec.iterations,
    }
    for name in ("semantic", "event") if spec.kind == "nugraph3" else ("semantic",):
        if name in heads:
            sizes[f"{name}_classes"] = [str(number) for number in range(heads[name].width)]
    own: tuple[str, ...] = ("semantic", "filter")
    if spec.kind == "nugraph2":
        sizes |= {"planar_features": spec.hit_width}
        kind: type[Network] = NuGraph2
    else:
        own = (*own, "event", "vertex", "instance", "spacepoint")
        sizes |= {"hit_features": spec.hit_width, "interaction_features": spec.event_width}
        if "instance" in heads:
            sizes["instance_features"] = heads["instance"].width
        kind = NuGraph3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch Geometric's, of nugraph's own structure
        model = kind(**sizes, **{f"{name}_head": name in heads for name in own})
    return with_weights(model, card, weights)
