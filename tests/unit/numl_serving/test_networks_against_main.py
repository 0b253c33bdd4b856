"""Checkpoints of nugraph's main branch are imported and answer as its own code did.

The files in ``nugraph26`` were made by ``nugraph26_recipe.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import Network
from numl_serving.checkpoint import read_checkpoint
from numl_serving.clustering import add_instances
from numl_serving.event import Event
from numl_serving.graph import build_graph
from numl_serving.importer import Report, Request, import_checkpoint
from numl_serving.native import NativeModel, cluster
from numl_serving.weights import read_weights
from numpy.typing import NDArray

from numl_formats.card import EXTENSION_FEATURES, Clustering, Embedding, ModelCard
from numl_formats.cardfile import dump_card, parse_card
from numl_formats.errors import FormatError
from numl_formats.golden import read_golden

FOLDER = Path(__file__).resolve().with_name("nugraph26")
CASES = sorted(path.stem for path in FOLDER.glob("*.ckpt"))
ALL_HEADS = ("semantic", "filter", "event", "vertex", "spacepoint", "instance_beta", "instance")
FIRST_EXTENDED = ("wire_position", "time_position", "integral", "rms", *EXTENSION_FEATURES)

Arrays = Mapping[str, NDArray[Any]]


def request(name: str, out: Path, **more: Any) -> Request:
    if name == "extended_nugraph2":
        more = {"architecture": "nugraph2", "features": FIRST_EXTENDED} | more
    return Request(FOLDER / f"{name}.ckpt", out=out, **({"architecture": "nugraph3"} | more))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    @cache
    def of(name: str) -> tuple[Report, Path]:
        out = tmp_path_factory.mktemp("nugraph26") / name
        return import_checkpoint(request(name, out)), out

    return of


def kept(name: str, card: ModelCard) -> tuple[Event, Arrays]:
    golden = read_golden(FOLDER / f"{name}.npz")
    # No graph depends on the spacepoints' own numbers.
    numbers = np.arange(len(golden.inputs["spacepoint_table_hit_id_u"]), dtype=np.int32)
    inputs = {**golden.inputs, "spacepoint_table_spacepoint_id": numbers}
    return Event.from_tensors(inputs, card.schema), golden.outputs


def assert_same_answer(wanted: Arrays, given: Arrays) -> None:
    assert given.keys() == wanted.keys()
    for name, array in wanted.items():
        if array.dtype.kind == "i":
            assert (given[name] == array).all(), name
            continue
        assert given[name].shape == array.shape, name
        assert np.abs(given[name] - array).max() <= 1e-4 * np.abs(array).max(), name
        if array.ndim == 2:
            assert (given[name].argmax(1) == array.argmax(1)).all(), name


@pytest.mark.parametrize("name", CASES)
def test_the_native_library_answers_as_nugraph(name, imported):
    report, folder = imported(name)
    event, wanted = kept(name, report.card)
    weights = read_weights(folder, report.card)
    assert_same_answer(wanted, NativeModel(report.card, weights).infer(event))


@pytest.mark.parametrize("name", CASES)
def test_pytorch_answers_as_nugraph(name, imported):
    report, folder = imported(name)
    card = report.card
    event, wanted = kept(name, card)
    network = Network(card, read_weights(folder, card), torch.float64)
    given = network.answer([event])
    if card.clustering is not None:
        add_instances(given, card.clustering, card.planes, build_graph(event, card).rows, cluster)
    assert_same_answer(wanted, given)


def test_the_instances_of_the_kept_answers_are_several():
    for name in ("instance", "narrow"):
        outputs = read_golden(FOLDER / f"{name}.npz").outputs
        labels = np.concatenate([outputs[f"x_i_{plane}"] for plane in "uvy"])
        assert set(labels) >= {-1, 0, 1}


@pytest.mark.parametrize(
    ("name", "generation", "embedding", "heads"),
    [
        ("plain", "2026-05", None, ("semantic", "filter")),
        ("instance", "2026-05", Embedding(3, 48, 3), ALL_HEADS),
        ("two_planes", "2026-05", Embedding(3, 27, 3), ("vertex", "instance_beta", "instance")),
        ("narrow", "2026-01", Embedding(3, 16, 2), ALL_HEADS),
    ],
)
def test_the_shape_of_the_embedding_is_recognised(name, generation, embedding, heads, imported):
    card = imported(name)[0].card
    assert (card.network.generation, card.network.embedding) == (generation, embedding)
    assert tuple(head.name for head in card.heads) == heads
    assert parse_card(json.loads(dump_card(card))) == card


def test_without_an_instance_head_the_embedding_is_left_out(imported):
    report, folder = imported("plain")
    state = read_checkpoint(FOLDER / "plain.ckpt").state
    unused = {n for n in state if n.split(".")[1] in ("beta_net", "coord_net")}
    assert len(unused) == 16
    assert unused <= set(report.ignored_weights)
    assert any("no instance head" in note for note in report.notes)
    assert not any(n.startswith(("beta", "coordinates")) for n in read_weights(folder, report.card))


def test_clusters_have_the_parameters_of_nugraph(imported):
    assert imported("instance")[0].card.clustering == Clustering(
        "x_i", "ox", eps=0.3, min_samples=15, signal="x_filter", semantic="x_semantic", background=6
    )


def test_an_extension_that_the_training_filled_with_zeros_is_left_out(imported):
    report = imported("zeros")[0]
    assert not set(EXTENSION_FEATURES) & set(report.card.hit_features)
    assert any("feature extension was zero" in note for note in report.notes)


def test_the_extension_is_recognised_by_its_width_and_asks_for_no_column(imported):
    card = imported("extended")[0].card
    assert card.hit_features[-4:] == EXTENSION_FEATURES
    assert not any("degree" in tensor.name for tensor in card.schema.tensors)


def test_eight_features_of_nugraph2_may_be_either(tmp_path):
    report = import_checkpoint(request("extended_nugraph2", tmp_path / "out", features=None))
    assert "tpc" in report.card.hit_features
    assert any("log_degree" in note and "--features" in note for note in report.notes)


def test_a_card_with_an_embedding_but_without_its_heads_is_refused(imported):
    card = replace(imported("instance")[0].card, clustering=None)
    content = json.loads(dump_card(replace(card, heads=card.heads[:2])))
    with pytest.raises(FormatError, match=r"network\.embedding needs nugraph3 and its heads"):
        parse_card(content)
    content = json.loads(dump_card(card))
    content["network"]["embedding"]["layers"] = 4
    with pytest.raises(FormatError, match="layers is 4: expected 2 or 3"):
        parse_card(content)
