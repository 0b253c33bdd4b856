"""What nugraph's feature extension costs: the same network with the four features and without.

``python -m numl_bench.extension EVENTS.npz DIR SECONDS`` times the native library on each set of
events for so long, both networks in turn, and prints a line of JSON: the seconds of each round.
The further weights are zeros; they only have to be there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numl_serving.event import Event
from numl_serving.native import NativeModel
from numl_serving.shapes import weight_shapes
from numl_serving.weights import read_weights
from numpy.typing import NDArray

from numl_formats.card import EXTENSION_FEATURES, ModelCard, PlaneNormalisation
from numl_formats.cardfile import read_card
from numl_formats.repository import CARD_FILE

from .events import read_sets

Weights = Mapping[str, NDArray[np.float32]]

_ROUNDS = 15
_MORE = len(EXTENSION_FEATURES)


def extended(card: ModelCard, weights: Weights) -> tuple[ModelCard, Weights]:
    """Return a network with the extension's features behind its own."""
    norm = card.normalisation
    if norm is not None:
        norm = {
            plane: PlaneNormalisation((*each.mean, *[0.0] * _MORE), (*each.std, *[1.0] * _MORE))
            for plane, each in norm.items()
        }
    features = (*card.hit_features, *EXTENSION_FEATURES)
    wide = replace(card, hit_features=features, normalisation=norm)
    found = {}
    for name, shape in weight_shapes(wide).items():
        array = weights[name]
        # -1: the planes may share them.
        wanted = [own if size < 0 else size for own, size in zip(array.shape, shape, strict=True)]
        missing = [(0, size - own) for own, size in zip(array.shape, wanted, strict=True)]
        found[name] = np.pad(array, missing) if missing else array
    return wide, found


def main() -> int:
    """Run the process; returns the exit code."""
    events, folder, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    card = read_card(folder / CARD_FILE)
    weights = read_weights(folder, card)
    plain, wide = NativeModel(card, weights), NativeModel(*extended(card, weights))
    times: dict[str, list[tuple[float, float]]] = {}
    for name, requests in read_sets(events).items():
        sent = [Event.from_tensors(tensors, card.schema) for tensors in requests]
        _round(plain, wide, sent, 1)  # the first touches memory
        once = 2 * len(sent) * sum(_round(plain, wide, sent, 1))
        repeats = max(1, round(seconds / _ROUNDS / once))
        times[name] = [_round(plain, wide, sent, repeats) for _ in range(_ROUNDS)]
    print(json.dumps({"times": times}), flush=True)
    return 0


def _round(
    plain: NativeModel, wide: NativeModel, events: list[Event], repeats: int
) -> tuple[float, float]:
    """Return the processor's seconds that both take, in turn, for an event."""
    spent = [0.0, 0.0]
    for _ in range(repeats):
        for event in events:
            for which in (0, 1, 1, 0):
                started = time.thread_time()
                (plain, wide)[which].infer(event)
                spent[which] += time.thread_time() - started
    first, second = (each / (2 * repeats * len(events)) for each in spent)
    return first, second


if __name__ == "__main__":
    raise SystemExit(main())
