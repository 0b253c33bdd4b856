"""Event displays: what is drawn, not how it looks."""

from dataclasses import replace
from itertools import repeat
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
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


def make_labels(hits: int, planes: str = "uvy", *, event: bool = True) -> Labels:
    rng = np.random.default_rng(hits)
    tensors = {
        "hit_table_hit_id": np.arange(hits, dtype=np.int32),
        "hit_table_local_plane": (np.arange(hits) % len(planes)).astype(np.int32),
        "hit_table_local_wire": rng.integers(0, 3456, hits).astype(np.int32),
        "hit_table_local_time": rng.uniform(0, 6400, hits).astype(np.float32),
    }
    return Labels(
        EventTensors((7010, 1705, 85251), "a.h5", MappingProxyType(tensors)),
        tuple(planes),
        {
            "x_semantic": np.eye(7, dtype=np.float32)[rng.integers(0, 7, hits)],
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


def test_names_are_drawn_as_they_are_in_a_png_that_is_written_whole_and_alone(tmp_path):
    names = ("_other", "$A_$", "$x$", *STANDARD[3:])
    labels, model = make_labels(30), served(names)
    text = texts(labels, names)
    assert all(f"{name} " in text for name in names)
    path = tmp_path / "new" / "e.png"
    model = replace(model, parameters={**model.parameters, "weights": "$A_$.ckpt"})
    write_display(labels, path, model)
    assert imread(path).shape[1] > 1500
    assert [p.name for p in path.parent.iterdir()] == ["e.png"]
    write_matrices({"semantic": Head(names, np.eye(7, dtype=np.int64))}, "$A_$", path)


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


@pytest.mark.parametrize(
    ("hits", "planes", "event"),
    [(0, "uvy", True), (1, "uvy", False), (40, "z", False), (40, "xz", True), (40, "uvwz", False)],
)
def test_any_event_of_any_detector_can_be_drawn(hits, planes, event):
    figure = draw(make_labels(hits, planes, event=event), served())
    kinds = (" (induction)", " (induction)", " (collection)") if planes == "uvy" else repeat("")
    titles = [f"plane {name}{kind}" for name, kind in zip(planes, kinds, strict=False)]
    assert [axes.get_title("left") for axes in figure.axes] == titles
    counts = [len(range(plane, hits, len(planes))) for plane in range(len(planes))]
    assert [axes.get_title("right") for axes in figure.axes] == [f"{n} hits" for n in counts]
    inside = [[t.get_text() for t in axes.texts] for axes in figure.axes]
    assert inside == [[] if n else ["no hits"] for n in counts]
    assert any("event class" in t.get_text() for t in figure.texts) == event


def test_a_model_without_classes_or_filter_draws_all_hits_alike():
    labels = replace(make_labels(30, event=False), hits={})
    text = texts(labels, ())
    assert "signal 30" in text
    assert text.count("10 hits") == 3


def test_dots_shrink_with_the_number_of_hits():
    sizes = [marker_size(n) for n in (0, 1, 100, 1000, 3000, 10**6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= 3
