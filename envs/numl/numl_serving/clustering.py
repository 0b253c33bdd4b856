"""Instances from the outputs of a network: nugraph's instance decoder on the host.

Source: nugraph 25.4's instance decoder, which clusters the hits that the other heads call signal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from numl_formats.card import Clustering
from numl_serving.answer import Outputs

Cluster = Callable[[NDArray[np.float32], float, int], NDArray[np.int32]]


def add_instances(
    outputs: Outputs,
    clustering: Clustering,
    planes: Sequence[str],
    rows: NDArray[np.int32],
    cluster: Cluster,
) -> None:
    """Add the instance of each hit to the outputs of an event.

    Args:
        outputs: Of the heads, by tensor name.
        clustering: The model card's.
        planes: Names of the planes.
        rows: Row in the request of each hit, plane after plane. Hits are clustered in the order
            of the request: it decides their clusters' numbers.
        cluster: DBSCAN, as `numl_serving.native.cluster`.
    """

    def in_order(output: str) -> NDArray[np.float32]:
        joined = np.concatenate([outputs[f"{output}_{plane}"] for plane in planes])
        ordered = np.empty_like(joined)
        ordered[rows] = joined
        return ordered

    wanted = np.ones(len(rows), np.bool_)
    if clustering.signal is not None:
        wanted &= in_order(clustering.signal) > 0.5
    if clustering.semantic is not None:
        wanted &= in_order(clustering.semantic).argmax(axis=1) != clustering.background
    labels = np.full(len(rows), -1, np.int32)
    coordinates = in_order(clustering.embedding)[wanted]
    if coordinates.ndim == 1:  # a head of width 1 has no axis for it
        coordinates = coordinates[:, None]
    labels[wanted] = cluster(coordinates, clustering.eps, clustering.min_samples)
    sizes = [len(outputs[f"{clustering.embedding}_{plane}"]) for plane in planes]
    ends = np.cumsum([0, *sizes]).tolist()
    for plane, (begin, end) in zip(planes, pairwise(ends), strict=True):
        outputs[f"{clustering.output}_{plane}"] = labels[rows[begin:end]]
