"""A network is recognised from its weights, and a stranger is refused with a reason."""

from __future__ import annotations

import pytest
from numl_serving.errors import ModelFilesError
from numl_serving.networks.variants import Shapes, canonical_name, is_served, recognise
from oracle import KINDS, reference


def shapes_of(kind: str) -> dict[str, tuple[int, ...]]:
    return {n: tuple(t.shape) for n, t in reference(kind, 0).state_dict().items() if is_served(n)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_variant_and_its_sizes_are_read_from_the_weights(kind: str) -> None:
    shapes = shapes_of(kind)
    spec = recognise(shapes, "nugraph2" if kind == "nugraph2" else "nugraph3")
    assert spec.variant == ("per-plane" if kind == "per-plane" else "24.7.1")
    assert spec.expected() == shapes
    if kind == "nugraph2":
        assert (spec.planar_features, spec.nexus_features) == (64, 16)
        assert (spec.semantic_classes, spec.heads) == (5, ("semantic", "filter"))
    else:
        assert (spec.planar_features, spec.nexus_features, spec.interaction_features) == (
            128,
            32,
            32,
        )
        assert spec.heads == ("semantic", "filter", "event", "vertex")


def test_other_widths_classes_and_heads_are_recognised() -> None:
    from nugraph.models import NuGraph3

    model = NuGraph3(
        planar_features=24,
        nexus_features=7,
        interaction_features=9,
        semantic_classes=("a", "b"),
        filter_head=False,
        instance_head=True,
    )
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items() if is_served(n)}
    spec = recognise(shapes, "nugraph3")
    assert (spec.planar_features, spec.nexus_features, spec.interaction_features) == (24, 7, 9)
    assert (spec.semantic_classes, spec.heads) == (2, ("semantic",))


def test_edge_types_in_the_old_spelling_get_the_new_one() -> None:
    assert (
        canonical_name("core_net.plane_net.convs.u__plane__u.net.0.bias")
        == "core_net.plane_net.convs.<u___plane___u>.net.0.bias"
    )
    assert canonical_name("encoder.lins.u.weight") == "encoder.lins.u.weight"


def refusal(shapes: Shapes, architecture: str) -> str:
    with pytest.raises(ModelFilesError) as caught:
        recognise(shapes, architecture)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_other_architecture_is_named_where_its_weights_are_given() -> None:
    assert "import them with --model nugraph2" in refusal(shapes_of("nugraph2"), "nugraph3")


def test_an_unknown_network_is_refused_with_what_is_missing_unexpected_and_supported() -> None:
    shapes = shapes_of("per-plane")
    del shapes["event_decoder.net.weight"]
    shapes["encoder.surprise"] = (3,)
    shapes["vertex_decoder.net.bias"] = (17,)
    message = refusal(shapes, "nugraph3")
    assert "closest is variant per-plane" in message
    assert "missing event_decoder.net.weight" in message
    assert "unexpected encoder.surprise" in message
    assert "of another shape vertex_decoder.net.bias" in message
    assert "supported are nugraph3 of nugraph 24.7.1" in message


def test_a_network_of_another_kind_is_refused_in_one_short_line() -> None:
    assert len(refusal({f"layer{i}.weight": (3, 3) for i in range(500)}, "nugraph2")) < 1500
    assert "missing" in refusal({}, "nugraph3")
