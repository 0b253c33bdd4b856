"""Event displays: what is drawn, not how it looks."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels
from deploy.events.display import colours, draw, marker_size, write_display
from deploy.events.files import EventTensors
from deploy.events.matrices import write_matrices
from deploy.events.scores import Head

STANDARD = ("pion", "muon", "kaon", "hadron", "shower", "michel", "diffuse")
SIMPLE = ("MIP", "HIP", "shower", "michel", "diffuse")
EVENT = ("cc_nue", "cc_numu", "cc_nutau", "nc")


def make_labels(
    hits: int,
    planes: int = 3,
    classes: int = 7,
    *,
    event: bool = True,
    names: tuple[str, ...] = ("u", "v", "y"),
) -> Labels:
    rng = np.random.default_rng(hits)
    tensors = {
        "hit_table_hit_id": np.arange(hits, dtype=np.int32),
        "hit_table_local_plane": (np.arange(hits) % max(planes, 1)).astype(np.int32),
        "hit_table_local_wire": rng.integers(0, 3456, hits).astype(np.int32),
        "hit_table_local_time": rng.uniform(0, 6400, hits).astype(np.float32),
    }
    return Labels(
        EventTensors((7010, 1705, 85251), "a.h5", MappingProxyType(tensors)),
        names,
        {
            "x_semantic": np.eye(classes, dtype=np.float32)[rng.integers(0, classes, hits)],
            "x_filter": rng.random(hits).astype(np.float32),
        },
        {"e_evt": np.float32([-9.1, 0.2, -51.2, 1.1])} if event else {},
    )


def served(classes: tuple[str, ...] = STANDARD) -> ServedModel:
    named = {"semantic_classes": ",".join(classes), "event_classes": ",".join(EVENT)}
    return ServedModel("nugraph3", {}, (), named)


def texts(labels: Labels, classes: tuple[str, ...] = STANDARD) -> str:
    figure = draw(labels, served(classes))
    legend = figure.legends[0].get_texts()
    axes = [t for a in figure.axes for t in (a.get_title("left"), a.get_title("right"))]
    marks = [a.get_xlabel() for a in figure.axes] + [figure.axes[0].get_ylabel()]
    inside = [t.get_text() for a in figure.axes for t in a.texts]
    return "\n".join([t.get_text() for t in (*figure.texts, *legend)] + axes + marks + inside)


def test_a_display_says_what_it_shows():
    labels = make_labels(300)
    text = texts(labels)
    assert "run 7010   subrun 1705   event 85251" in text
    assert "labels by nugraph3" in text
    assert "event class: nc 71 %" in text
    assert "cc_numu 29 %" in text
    assert text.count("100 hits") == 3
    assert "wire number" in text
    assert "time [ticks]" in text
    kept = labels.label[~labels.noise]
    for i, name in enumerate(STANDARD):
        assert f"{name} {(kept == i).sum()}" in text
    assert f"noise (filter < 0.5) {labels.noise.sum()}" in text


def test_the_name_of_the_weights_is_no_formula(tmp_path):
    model = replace(served(), parameters={"weights": "$A_$.ckpt"})
    write_display(make_labels(3), tmp_path / "event.png", model)
    assert (tmp_path / "event.png").exists()


def test_names_of_classes_are_drawn_as_they_are(tmp_path):
    names = ("_other", "$A_$", "$x$", *STANDARD[3:])
    labels = make_labels(30)
    text = texts(labels, names)
    assert all(f"{name} " in text for name in names)
    write_display(labels, tmp_path / "event.png", served(names))
    head = Head(names, np.eye(7, dtype=np.int64))
    write_matrices({"semantic": head}, "title", tmp_path / "matrices.png")


def test_every_hit_is_drawn_once_in_its_colour():
    labels = make_labels(200)
    figure = draw(labels, served())
    drawn = []
    for axes in figure.axes:
        for group in axes.collections:
            places = np.asarray(group.get_offsets())
            faces = np.broadcast_to(np.asarray(group.get_facecolor()), (len(places), 4))
            drawn += [
                (*map(float, xy), *np.round(face[:3], 3))
                for xy, face in zip(places, faces, strict=True)
            ]
    tensors = labels.event.tensors
    palette = np.round([to_rgb(c) for c in (*colours(STANDARD), "#b8b8b8")], 3)
    wanted = np.where(labels.noise, 7, labels.label)
    expected = [
        (float(w), float(t), *palette[c])
        for w, t, c in zip(
            tensors["hit_table_local_wire"], tensors["hit_table_local_time"], wanted, strict=True
        )
    ]
    assert sorted(drawn) == sorted(expected)


def test_classes_keep_their_colours_in_every_model():
    standard = dict(zip(STANDARD, colours(STANDARD), strict=True))
    simple = dict(zip(SIMPLE, colours(SIMPLE), strict=True))
    assert simple["shower"] == standard["shower"]
    assert simple["michel"] == standard["michel"]
    assert simple["MIP"] == standard["muon"]


@given(st.lists(st.sampled_from([*STANDARD, *SIMPLE, "class_0", "x"]), unique=True, max_size=7))
def test_up_to_seven_classes_have_seven_colours(names):
    assert len(set(colours(names))) == len(names)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 40), st.integers(1, 3), st.booleans())
def test_any_event_can_be_drawn(hits, planes, event):
    text = texts(make_labels(hits, planes, event=event))
    assert ("event class" in text) == event
    assert text.count("no hits") == 3 - min(hits, planes)


@pytest.mark.parametrize("names", [("z",), ("x", "z"), ("u", "v", "w", "z")])
def test_every_plane_of_a_detector_is_drawn(names):
    labels = make_labels(40, planes=len(names), names=names)
    figure = draw(labels, served())
    assert [a.get_title("left") for a in figure.axes] == [f"plane {name}" for name in names]
    assert figure.axes[0].get_title("right") == f"{40 // len(names)} hits"


def test_a_model_without_classes_or_filter_draws_all_hits_alike():
    labels = replace(make_labels(30, event=False), hits={})
    text = texts(labels, ())
    assert "signal 30" in text
    assert text.count("10 hits") == 3


def test_dots_shrink_with_the_number_of_hits():
    sizes = [marker_size(n) for n in (0, 1, 100, 1000, 3000, 10**6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= 3


def test_a_png_is_written_whole_and_alone(tmp_path):
    path = tmp_path / "new" / "e.png"
    write_display(make_labels(50, classes=5), path, served(SIMPLE))
    assert imread(path).shape[1] > 1500
    assert [p.name for p in path.parent.iterdir()] == ["e.png"]
