"""The native library: clusters, levels of instructions, threads, and requests it refuses."""

import resource
import threading
import time
from dataclasses import replace
from itertools import product, tee
from typing import Any

import numpy as np
import pytest
from cases import LAYOUTS, MODELS, Answer, Case, exact_and_rounded, random25, simulate_event
from comparing import RANDOM, assert_as_near_as_nugraph, differences
from hypothesis import given
from hypothesis import strategies as st
from numl_serving import native
from numl_serving.batches import Limits
from numl_serving.errors import EventError, ModelFilesError
from numl_serving.event import Event
from numl_serving.native import NativeModel, cluster
from numl_serving.shapes import weight_shapes
from numl_serving.torch_runtime import TorchEngine
from numl_serving.weights import read_weights
from numpy.typing import NDArray
from oracle import KINDS, card_of, random_weights
from oracle25 import simulated
from sklearn.cluster import DBSCAN
from small_models import CARDS, NUGRAPH2, NUGRAPH3, random_event
from small_models import random_weights as small_weights

from numl_formats.card import Embedding, Head
from numl_formats.cardfile import read_card


def in_the_order_of_the_request(answered: Answer, event: Event, output: str) -> NDArray[Any]:
    parts = [answered[f"{output}_{plane}"] for plane in event.schema.planes]
    order = np.argsort(np.argsort(event.hit("local_plane"), kind="stable"))
    joined: NDArray[Any] = np.concatenate(parts)[order]
    return joined


def test_instances_are_the_clusters_of_scikit_learn_in_the_order_of_the_request():
    model = random25(LAYOUTS[0])
    rule = model.card.clustering
    assert rule is not None
    found = 0
    rules = (rule, replace(rule, signal=None, semantic=None))
    for eps, rule, hits in product(np.geomspace(1e-3, 10, 5), rules, (0, 1, 40, 1500)):
        rule = replace(rule, eps=eps, min_samples=3)
        card = replace(model.card, clustering=rule)
        event = random_event(hits, hits, schema=card.schema)
        answered = NativeModel(card, model.weights).infer(event)
        filters, semantic, coordinates, labels = (
            in_the_order_of_the_request(answered, event, output)
            for output in ("x_filter", "x_semantic", "ox", "x_i")
        )
        taken = np.full(hits, True)
        if rule.signal is not None:
            taken = (filters > 0.5) & (semantic.argmax(axis=1) != rule.background)
        wanted = np.full(hits, -1)
        if taken.any():
            wanted[taken] = DBSCAN(eps=eps, min_samples=3).fit_predict(coordinates[taken])
        np.testing.assert_array_equal(labels, wanted)
        found = max(found, wanted.max(initial=-1))
    assert found > 0


@given(
    seed=st.integers(0, 2**32 - 1),
    points=st.integers(0, 200),
    width=st.integers(1, 8),
    eps=st.sampled_from([0.1, 0.5, 2.0]),
    min_samples=st.integers(1, 7),
)
def test_labels_are_those_of_scikit_learn(seed, points, width, eps, min_samples):
    x = np.random.default_rng(seed).normal(size=(points, width)).astype(np.float32)
    wanted = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(x) if points else np.empty(0)
    np.testing.assert_array_equal(cluster(x, eps, min_samples), wanted)


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("places", [1, 2, 40])
def test_points_that_coincide_are_labelled_as_scikit_learn_labels_them(width, places):
    random = np.random.default_rng(places)
    # At few places, some of them within reach of others, in no order; and points apart.
    grid = random.integers(0, 9, (places, width)) * 0.25
    x = np.concatenate([grid[random.integers(0, places, 600)], 50 + 9 * random.random((30, width))])
    x = random.permutation(x).astype(np.float32)
    for eps, min_samples in product((0.1, 0.25, 0.6), (1, 3, 40)):
        wanted = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(x)
        np.testing.assert_array_equal(cluster(x, eps, min_samples), wanted)


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 70),
    scale=st.sampled_from([1e-30, 1e-18, 1e-6, 1.0, 1e6, 1e17, 1e19, 1e30]),
    off=st.sampled_from([-1e-7, -1e-12, 0.0, 1e-12, 1e-7]),
)
def test_float64_decides_whether_points_at_the_edge_of_reach_are_neighbours(
    seed, width, scale, off
):
    random = np.random.default_rng(seed)
    x = (scale * (random.uniform(-1, 1, width) + random.normal(size=(2, width)))).astype(np.float32)
    square = np.add.accumulate((x[0].astype(float) - x[1]) ** 2)[-1]  # one after the other
    eps = float(np.sqrt(square)) * (1 + off)
    # An ulp is left to a compiler that fuses a product and a sum.
    if abs(square / eps**2 - 1) > 1e-14:
        assert cluster(x, eps, 2).tolist() == ([0, 0] if square <= eps * eps else [-1, -1])
    else:
        assert cluster(x, eps * (1 + 1e-13), 2).tolist() == [0, 0]


def test_many_points_in_one_place_take_about_as_long_as_as_many_apart():
    apart = np.random.default_rng(0).uniform(0, 1e4, (20_000, 3)).astype(np.float32)
    for min_samples in (3, 10):
        taken = {}
        for name, x in (("apart", apart), ("together", np.zeros_like(apart))):
            begun = time.thread_time()
            cluster(x, 0.5, min_samples)
            taken[name] = time.thread_time() - begun
        # Compared pair by pair they took some hundred times as long.
        assert taken["together"] < 20 * taken["apart"]


@pytest.mark.parametrize(
    ("width", "most"),
    [(1, 20_000), (8, 20_000), (32, 20_000), (33, 19_694), (128, 10_000), (3200, 2000)],
)
def test_clustering_at_its_limit_takes_seconds_at_no_width(width, most):
    # In the worst case each coordinate of each pair of points is looked at.
    assert most**2 * width <= 20_000**2 * 32
    apart = np.zeros((most + 1, width), np.float32)
    apart[:, 0] = np.arange(most + 1)
    assert (cluster(apart[:-1], 0.5, 2) == -1).all()
    with pytest.raises(EventError) as caught:
        cluster(apart, 0.5, 2)
    assert str(caught.value) == (
        f"the event has {most + 1} hits to find instances among: at most {most} are taken"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_biases_than_weights_are_refused_by_the_library_itself(kind, monkeypatch):
    monkeypatch.setattr(native, "check_weights", lambda card, shapes: None)
    card = card_of(kind)
    weights = random_weights(card, 0)
    by_plane = [n for n, shape in weight_shapes(card).items() if shape[:1] == (-1,)]
    for bias in (name for name in by_plane if name.endswith(".bias")):
        weight = bias.replace(".bias", ".weight")
        planes = len(card.planes)
        fewer = weights | {
            weight: np.repeat(weights[weight][:1], planes, axis=0),
            bias: weights[bias][:1],
        }
        with pytest.raises(ModelFilesError, match=f"^weight {bias} is for 1 plane, but"):
            NativeModel(card, fewer)


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_of_instructions_gives_the_same_answer_but_for_rounding(kind):
    case = Case(kind)
    weights = random_weights(case.card, 0)
    levels = (1, 3, 4)
    models = [NativeModel(case.card, weights, level=level) for level in levels]
    assert all(model.level <= level for model, level in zip(models, levels, strict=True))
    for hits in (0, 1, 37, 150):
        event = case.event(hits, hits)
        exact, rounded = exact_and_rounded(case, 0, event)
        for model, answers in zip(models, tee(rounded, len(models)), strict=True):
            assert_as_near_as_nugraph(exact, answers, model.infer(event), RANDOM)


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("name", ["nugraph2", "nugraph3"])
@pytest.mark.parametrize("hits", [(60, 100), (1000, 1500)])
def test_every_level_answers_as_the_first_does_with_the_weights_of_the_repository(
    name, level, hits
):
    card = read_card(MODELS / name / "1" / "model.json")
    weights = read_weights(MODELS / name / "1", card)
    first, asked = (NativeModel(card, weights, level=each) for each in (1, level))
    if asked.level != level:
        pytest.skip(f"this processor has no x86-64-v{level}")
    event = simulated(simulate_event(7, 1, hits), card.schema)
    assert differences(first.infer(event), asked.infer(event), 2e-5) == []


@pytest.mark.parametrize(
    "card",
    [NUGRAPH2, NUGRAPH3, replace(NUGRAPH3, network=replace(NUGRAPH3.network, nexus="concat"))],
    ids=["nugraph2", "nugraph3", "nugraph3 with a joint nexus"],
)
def test_a_layer_may_be_there_for_each_plane_or_once_whatever_the_others_are(card):
    rng, planes = np.random.default_rng(0), len(card.planes)
    event = random_event(rng, 90, schema=card.schema)
    shared, apart = dict[str, Any](), dict[str, Any]()
    for name, shape in weight_shapes(card).items():
        for weights, count in ((shared, 1), (apart, planes)):
            sizes = [count if size == -1 else size for size in shape]
            weights[name] = rng.normal(0, 0.3, sizes).astype(np.float32)
    layers = {name: name.rpartition(".")[0] for name in shared}
    wrong = set()
    for layer, (most, one) in product(
        sorted(set(layers.values())), ((shared, apart), (apart, shared))
    ):
        weights = {name: (one if layers[name] == layer else most)[name] for name in layers}
        (expected,) = TorchEngine(card, weights, "cpu", None, Limits()).run([event]).outputs
        assert isinstance(expected, dict)
        for name, array in NativeModel(card, weights).infer(event).items():
            # Labels follow from the rest, and change where rounding moves a hit.
            if array.dtype.kind == "f":
                largest = np.abs(expected[name]).max()
                if np.abs(array - expected[name]).max() > 1e-4 * largest:
                    wrong.add(layer)
    assert wrong == set()


def test_heads_on_an_embedding_are_for_all_planes():
    card = replace(
        NUGRAPH3,
        network=replace(NUGRAPH3.network, embedding=Embedding(2, 4, 3)),
        heads=(*NUGRAPH3.heads, Head("instance_beta", "of", "hit", 1, "sigmoid")),
    )
    weights = small_weights(card)
    NativeModel(card, weights)
    for head in ("instance", "instance_beta"):
        names = [f"heads.{head}.{part}" for part in ("bias", "weight")]
        apart = weights | {name: np.repeat(weights[name][:1], 3, axis=0) for name in names}
        with pytest.raises(ModelFilesError, match=rf"^weight {names[0]} has shape \[3, "):
            NativeModel(card, apart)


def test_an_event_is_answered_the_same_where_no_file_can_be_opened():
    card = CARDS["nugraph3"]
    native = NativeModel(card, small_weights(card))
    columns = random_event(0, 300, schema=card.schema).tensors()
    # Hits at few positions, where QHull is asked, which writes messages.
    for name in ("hit_table_local_wire", "hit_table_local_time"):
        columns[name] = np.mod(columns[name], 8).astype(np.int32).astype(columns[name].dtype)
    event = Event.from_tensors(columns, card.schema)
    expected = native.infer(event)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        found = native.infer(event)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("networks", [1, 2])
def test_threads_get_the_answers_that_one_gets(networks):
    card = card_of("24.7.1")
    weights = random_weights(card, 0)
    models = [NativeModel(card, weights) for _ in range(networks)]
    rng = np.random.default_rng(0)
    events = [random_event(rng, hits, schema=card.schema) for hits in (300, 1, 40, 0, 700)]
    alone = [models[0].infer(event) for event in events]
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            which = (turn + number) % len(events)
            answered = models[number % networks].infer(events[which])
            wrong.extend(n for n, a in answered.items() if not np.array_equal(a, alone[which][n]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_event_that_is_refused_does_not_spoil_the_next():
    card = card_of("24.7.1")
    native = NativeModel(card, random_weights(card, 0))
    event = random_event(0, 200, schema=card.schema)
    before = native.infer(event)
    columns = event.tensors()
    same = {n: np.full_like(a, 7) for n, a in columns.items() if "hit_id" in n}
    with pytest.raises(EventError, match="ids must be unique in a plane"):
        native.infer(Event.from_tensors(columns | same, card.schema))
    for name, array in native.infer(event).items():
        np.testing.assert_array_equal(array, before[name])
