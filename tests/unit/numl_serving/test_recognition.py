"""A network is recognised from its weights, keeps every one of them, and a stranger is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import (
    CASES25,
    HEADS,
    UVY,
    architecture,
    folder25,
    model24,
    recognised,
    served,
)
from numl_serving.checkpoint import read_checkpoint
from numl_serving.errors import ModelFilesError
from numl_serving.recognition import Recognised, is_served, modern_name, recognise
from oracle import KINDS


def case25(name: str) -> Recognised:
    checkpoint = read_checkpoint(folder25() / f"{name}.ckpt")
    state = {n: array for n, array in checkpoint.state.items() if is_served(n)}
    return recognised(state, architecture(name), planes=checkpoint.hyper_parameters["planes"])


def head_names(found: Recognised) -> tuple[str, ...]:
    return tuple(head.name for head in found.heads)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generation_and_its_sizes_are_read_from_the_weights(kind):
    state = served(model24(kind).state_dict())
    found = recognised(state, architecture(kind))
    network = found.network
    assert network.generation == ("per-plane" if kind == "per-plane" else "24.7.1")
    assert found.expected() == {name: array.shape for name, array in state.items()}
    assert (found.planes, found.features, found.clustering) == (UVY, 4, None)
    if kind == "nugraph2":
        assert (network.hit_width, network.nexus_width, network.event_width) == (64, 16, 0)
        assert (network.classes, head_names(found)) == (5, ("semantic", "filter"))
    else:
        assert (network.hit_width, network.nexus_width, network.event_width) == (128, 32, 32)
        assert head_names(found) == ("semantic", "filter", "event", "vertex")
        softmax = kind == "24.7.1"
        assert (network.nexus, network.nexus_start) == (
            ("sum", "position") if softmax else ("concat", "zeros")
        )
        activations = [head.activation for head in found.heads]
        expected = "softmax" if softmax else "none"
        assert activations == [expected, "sigmoid", expected, "none"]


@pytest.mark.parametrize("name", CASES25)
def test_models_of_today_are_recognised_with_their_planes_features_and_heads(name):
    found = case25(name)
    arguments = CASES25[name]
    assert found.network.generation == "25.4"
    assert found.planes == tuple(arguments.get("planes", UVY))
    assert found.features == arguments["in_features"]
    default = {f"{head}_head": head in ("semantic", "filter") for head in HEADS}
    wanted = [head for head in HEADS if (default | arguments)[f"{head}_head"]]
    expected = [head for head in wanted if head != "instance"]
    expected += ["instance_beta", "instance"] if "instance" in wanted else []
    assert head_names(found) == tuple(expected)
    assert (found.clustering is not None) == ("instance" in wanted)


def test_clustering_asks_only_for_heads_that_are_there():
    both, one = case25("two_planes").clustering, case25("four_planes").clustering
    assert both is not None
    assert one is not None
    assert (both.embedding, both.signal, both.semantic) == ("ox", "x_filter", "x_semantic")
    assert (one.signal, one.semantic) == (None, "x_semantic")


def test_weights_that_the_planes_share_are_there_once_and_others_for_each():
    state = served(model24("24.7.1").state_dict())
    weights = recognised(state, "nugraph3").weights(state)
    assert weights["up.hidden.weight"].shape == (1, 32, 160)
    assert weights["heads.filter.weight"].shape == (3, 1, 128)
    name = "core_net.plane_net.convs.<v___plane___v>.net.0.bias"
    state[name] = state[name] + 1
    weights = recognised(state, "nugraph3").weights(state)
    assert weights["planar.gate.weight"].shape == (3, 256), "a block is shared as a whole"
    assert np.array_equal(weights["planar.hidden.bias"][1], state[name])
    assert weights["up.hidden.weight"].shape == (1, 32, 160)


def test_other_widths_planes_features_and_heads_are_recognised():
    model = model24(
        "24.7.1",
        planes=("a", "b1"),
        in_features=6,
        planar_features=24,
        nexus_features=7,
        interaction_features=9,
        semantic_classes=("a", "b"),
        filter_head=False,
        instance_head=True,
    )
    found = recognised(served(model.state_dict()), "nugraph3")
    network = found.network
    assert (network.hit_width, network.nexus_width, network.event_width) == (24, 7, 9)
    assert (found.planes, found.features) == (("a", "b1"), 6)
    assert head_names(found) == ("semantic", "event", "vertex", "instance_beta", "instance")
    assert found.heads[0].width == 2
    assert found.clustering is None, "24.7.1's own inference makes no instances"

    model = model24("nugraph2", planes=["w", "u", "v", "y"], in_features=5, semantic_head=False)
    found = recognised(served(model.state_dict()), "nugraph2")
    assert (found.planes, found.features) == (("w", "u", "v", "y"), 5)
    assert (found.network.classes, head_names(found)) == (5, ("filter",))


def test_planes_that_are_given_set_the_order():
    state = served(model24("24.7.1").state_dict())
    found = recognised(state, "nugraph3", planes=("y", "u", "v"))
    assert found.planes == ("y", "u", "v")
    assert np.array_equal(
        found.weights(state)["heads.semantic.bias"][0], state["semantic_decoder.net.y.bias"]
    )


def test_edge_types_in_the_old_spelling_get_the_new_one():
    assert (
        modern_name("core_net.plane_net.convs.u__plane__u.net.0.bias")
        == "core_net.plane_net.convs.<u___plane___u>.net.0.bias"
    )
    new = "core_net.plane_net.convs.<u_1___plane___u_1>.net.0.bias"
    assert modern_name("core_net.plane_net.convs.u_1__plane__u_1.net.0.bias") == new
    assert modern_name(new) == new
    assert modern_name("encoder.lins.u.weight") == "encoder.lins.u.weight"


def refusal(state: dict[str, Any], kind: str) -> str:
    with pytest.raises(ModelFilesError) as caught:
        recognised(state, kind)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_unknown_network_is_refused_with_what_is_missing_unexpected_and_supported():
    state = served(model24("per-plane").state_dict())
    del state["event_decoder.net.weight"]
    state["encoder.surprise"] = torch.zeros(3).numpy()
    state["vertex_decoder.net.weight"] = torch.zeros(3, 17).numpy()
    message = refusal(state, "nugraph3")
    assert "closest is nugraph between 24.4 and 24.7 (weights per plane)" in message
    assert "missing event_decoder.net.weight" in message
    assert "unexpected encoder.surprise" in message
    assert "with the wrong shape vertex_decoder.net.weight" in message
    assert "supported are nugraph3 of nugraph 24.7.1" in message
    assert "nugraph2 of nugraph 25.4" in message


def test_a_network_without_a_head_is_refused():
    state = served(model24("24.7.1").state_dict())
    bare = {name: array for name, array in state.items() if "_decoder." not in name}
    assert "heads none" in refusal(bare, "nugraph3")


def test_a_network_of_another_kind_is_refused_in_one_short_line():
    with pytest.raises(ModelFilesError) as caught:
        recognise({f"layer{i}.weight": (3, 3) for i in range(500)}, "nugraph2")
    assert len(str(caught.value)) < 1500
    assert "missing" in refusal({}, "nugraph3")
    scalar = {"encoder.coord_net.0.bias": np.zeros((), np.float32)}
    assert "encoder.coord_net.0.bias" in refusal(scalar, "nugraph3")
