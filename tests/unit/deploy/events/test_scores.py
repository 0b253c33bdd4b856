"""The figures of an evaluation, against scikit-learn's (`scores_of_sklearn.json`) and by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from deploy.events.answers import Labels
from deploy.events.files import EventTensors
from deploy.events.scores import Head, Scores, adjusted_rand, confusion
from deploy.events.tables import EventFileError
from deploy.events.truth import Truth

DATA = Path(__file__).parent / "data"
SKLEARN = json.loads((DATA / "scores_of_sklearn.json").read_text())


@pytest.mark.parametrize("case", SKLEARN, ids=lambda case: case["name"])
def test_figures_are_those_of_scikit_learn(case):
    truth, guess = np.array(case["truth"], int), np.array(case["guess"], int)
    names = tuple(map(str, range(case["classes"])))
    head = Head(names, confusion(truth, guess, case["classes"]))
    assert head.matrix.tolist() == case["confusion"]
    # Where a class is absent scikit-learn has 0, which is no figure.
    assert [share or 0 for share in head.recall.values()] == pytest.approx(case["recall"])
    assert [share or 0 for share in head.precision.values()] == pytest.approx(case["precision"])
    assert head.accuracy == pytest.approx(case["accuracy"])
    assert adjusted_rand(truth, guess) == pytest.approx(case["adjusted_rand"])


def labels(hits, **outputs):
    event = EventTensors((1, 1, 1), "", {"hit_table_hit_id": np.arange(hits)})
    of_hits = {n: np.asarray(v) for n, v in outputs.items() if not n.endswith("_evt")}
    whole = {n: np.asarray(v, np.float32) for n, v in outputs.items() if n.endswith("_evt")}
    return Labels(event, ("u",), of_hits, whole)


def test_figures_of_two_small_events_are_those_computed_by_hand():
    scores = Scores({"semantic": ("mip", "hip"), "event": ("a", "b", "c")})
    given = labels(
        5,
        x_semantic=np.eye(2)[[0, 1, 1, 0, 0]],
        x_filter=[0.9, 0.4, 0.8, 0.6, 0.1],
        x_i=[0, 0, 1, 1, -1],
        e_evt=[0.2, 0.7, 0.1],
        v_evt=[1, 2, 2],
    )
    semantic = np.array([0, 0, 1, -1, -1])
    instance = np.array([4, 4, 2, -1, -1])
    scores.add(given, Truth(semantic >= 0, semantic, instance, 1, np.zeros(3)))
    scores.add(given, Truth(semantic >= 0, semantic, instance, 0, np.array([1.0, 2.0, 3.0])))
    found = scores.document()
    assert (found["events"], found["hits"]) == (2, 10)
    assert found["semantic"] == {
        "classes": ["mip", "hip"],
        "confusion": [[2, 2], [0, 2]],
        "true": {"mip": 4, "hip": 2},
        "recall": {"mip": 0.5, "hip": 1.0},
        "precision": {"mip": 1.0, "hip": 0.5},
        "accuracy": pytest.approx(4 / 6),
        "largest_class": pytest.approx(4 / 6),
    }
    assert found["filter"]["confusion"] == [[2, 2], [2, 4]]
    assert found["event"]["recall"] == {"a": 0.0, "b": 1.0, "c": None}
    assert found["event"]["precision"] == {"a": None, "b": 0.5, "c": None}
    # Distances are 3 and 1; the mean vertex is half of (1, 2, 3) from both.
    assert found["vertex"] == {
        "events": 2,
        "median": pytest.approx(2),
        "quantile_68": pytest.approx(1 + 2 * 0.68),
        "median_of_the_mean_vertex": pytest.approx(np.sqrt(14) / 2),
        "mean_abs": pytest.approx({"x": 0.5, "y": 1.0, "z": 1.5}),
    }
    assert found["instance"] == {"adjusted_rand": 1.0, "events": 2}
    assert found["metrics"] == pytest.approx(
        {
            "semantic/recall": 4 / 6,
            "semantic/precision": 4 / 6,
            "semantic/f1": 4 / 6,
            "filter/recall": 4 / 6,
            "filter/precision": 4 / 6,
            "filter/f1": 4 / 6,
            "event/recall": 0.5,
            "event/precision": 0.5,
            "event/f1": 0.5,
            "vertex/x-resolution": 0.5,
            "vertex/y-resolution": 1.0,
            "vertex/z-resolution": 1.5,
            "vertex/resolution": np.sqrt(0.25 + 1 + 2.25),
            "instance/adjusted-rand": 1.0,
        }
    )


def test_what_file_or_model_lacks_is_not_a_figure():
    scores = Scores({"semantic": (), "event": ()})
    scores.add(labels(2, x_semantic=np.eye(2)), Truth(event=1, vertex=np.zeros(3)))
    scores.add(labels(2, x_i=[0, 1]), Truth(semantic=np.zeros(2, int)))
    found = scores.document()
    absent = ("semantic", "filter", "event", "vertex", "instance")
    assert [found[name] for name in absent] == [None] * 5
    assert found["metrics"] == {}


def test_an_event_without_a_vertex_does_not_count_in_its_figures():
    scores = Scores({"semantic": (), "event": ()})
    for vertex in (np.full(3, np.nan), np.array([0, np.inf, 0]), np.array([0.0, 3.0, 4.0])):
        scores.add(labels(0, v_evt=[0, 0, 0]), Truth(vertex=vertex))
    vertex = scores.document()["vertex"]
    assert (vertex["events"], vertex["median"]) == (1, 5)
    json.dumps(scores.document(), allow_nan=False)


def test_an_event_with_fewer_than_two_signal_hits_has_no_adjusted_rand_index():
    scores = Scores({"semantic": (), "event": ()})
    noise = np.array([-1, -1, -1, -1])
    for semantic in (noise, np.array([0, -1, -1, -1])):
        scores.add(labels(4, x_i=[0, 1, 0, 1]), Truth(semantic=semantic, instance=noise))
    assert scores.document()["instance"] is None
    instance = np.array([0, 0, 1, 1])
    scores.add(labels(4, x_i=[0, 1, 0, 1]), Truth(semantic=np.zeros(4, int), instance=instance))
    found = scores.document()
    assert found["instance"] == {"adjusted_rand": pytest.approx(-0.5), "events": 1}
    assert found["events"] == 3


@pytest.mark.parametrize(
    ("classes", "truth", "message"),
    [
        ((), [0, 2], "its truth has class 2, where there are 2"),
        (("a", "b", "c"), [0, 1], "the model answers 2 semantic classes, the file has 3"),
    ],
)
def test_a_truth_of_other_classes_is_refused(classes, truth, message):
    scores = Scores({"semantic": classes, "event": ()})
    with pytest.raises(EventFileError, match=message):
        scores.add(labels(2, x_semantic=np.eye(2)), Truth(semantic=np.array(truth)))
    assert scores.events == 0
