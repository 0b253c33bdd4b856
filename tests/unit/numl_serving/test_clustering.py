"""Which hits are clustered, in which order, and where their labels go."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numl_serving.clustering import add_instances

from numl_formats.card import Clustering

CLUSTERING = Clustering("x_i", "ox", 0.5, 3, "x_filter", "x_semantic", 1)
ROWS = np.array([0, 3, 4, 1, 2], np.int32)  # of hits 0, 3, 4 in plane u, then 1, 2 in plane v
OUTPUTS = {
    "ox_u": np.array([[0.0], [3.0], [4.0]], np.float32),
    "ox_v": np.array([[1.0], [2.0]], np.float32),
    "x_filter_u": np.array([0.9, 0.8, 0.4], np.float32),
    "x_filter_v": np.array([0.5, 0.7], np.float32),
    "x_semantic_u": np.array([[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]], np.float32),
    "x_semantic_v": np.array([[0.9, 0.1], [0.9, 0.1]], np.float32),
}


@pytest.mark.parametrize("has_axis", [True, False])
@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, [0, 2]),
        ({"signal": None}, [0, 1, 2, 4]),
        ({"semantic": None}, [0, 2, 3]),
        ({"signal": None, "semantic": None}, [0, 1, 2, 3, 4]),
    ],
)
def test_signal_that_is_not_background_is_clustered_in_the_order_of_the_request(
    changes, chosen, has_axis
):
    def cluster(coordinates: Any, eps: float, min_samples: int) -> Any:
        assert (eps, min_samples) == (0.5, 3)
        assert coordinates[:, 0].tolist() == chosen
        return np.arange(10, 10 + len(coordinates), dtype=np.int32)

    outputs = dict(OUTPUTS)
    if not has_axis:
        outputs |= {name: OUTPUTS[name][:, 0] for name in ("ox_u", "ox_v")}
    add_instances(outputs, replace(CLUSTERING, **changes), ("u", "v"), ROWS, cluster)
    wanted = np.full(5, -1)
    wanted[chosen] = np.arange(10, 10 + len(chosen))
    assert outputs["x_i_u"].tolist() == wanted[[0, 3, 4]].tolist()
    assert outputs["x_i_v"].tolist() == wanted[[1, 2]].tolist()
    assert outputs["x_i_u"].dtype == np.int32


def test_an_event_without_hits_has_no_instances():
    outputs = {name: array[:0] for name, array in OUTPUTS.items()}
    nothing = np.zeros(0, np.int32)
    add_instances(outputs, CLUSTERING, ("u", "v"), nothing, lambda *given: nothing)
    assert outputs["x_i_u"].shape == outputs["x_i_v"].shape == (0,)
