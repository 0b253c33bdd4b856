"""A network is recognised from its weights, keeps every one of them, and a stranger is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import CASES25, HEADS, UVY, folder25, model24, recognised, served
from numl_serving import generations
from numl_serving.checkpoint import read_checkpoint
from numl_serving.errors import ModelFilesError
from numl_serving.generations import HeadRow
from numl_serving.recognition import Recognised, is_served, modern_name, recognise

GENERATIONS24 = ("24.7.1", "per-plane", "nugraph2")


def architecture(name: str) -> str:
    return "nugraph2" if name.startswith("nugraph2") else "nugraph3"


def case25(name: str) -> tuple[Recognised, dict[str, Any]]:
    checkpoint = read_checkpoint(folder25() / f"{name}.ckpt")
    state = {n: array for n, array in checkpoint.state.items() if is_served(n)}
    planes = checkpoint.hyper_parameters["planes"]
    return recognised(state, architecture(name), planes=planes), state


def head_names(found: Recognised) -> tuple[str, ...]:
    return tuple(head.name for head in found.heads)


@pytest.mark.parametrize("kind", GENERATIONS24)
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
    found, _ = case25(name)
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
    both, one = case25("two_planes")[0].clustering, case25("four_planes")[0].clustering
    assert both is not None
    assert one is not None
    assert (both.embedding, both.signal, both.semantic) == ("ox", "x_filter", "x_semantic")
    assert (one.signal, one.semantic) == (None, "x_semantic")


@pytest.mark.parametrize("kind", GENERATIONS24)
def test_the_weights_are_those_of_the_model_each_in_one_place(kind):
    model = model24(kind)
    found = recognised(served(model.state_dict()), architecture(kind))
    weights = found.weights(served(model.state_dict()))
    # Modules that the planes share have one set of parameters.
    values = [
        parameter.detach().numpy().ravel()
        for name, parameter in model.named_parameters()
        if is_served(name)
    ]
    expected = np.sort(np.concatenate(values))
    actual = np.concatenate([array.ravel() for array in weights.values()])
    if kind == "nugraph2":  # the semantic head is dense, zero between the classes
        actual = actual[actual != 0]
    assert np.array_equal(np.sort(actual), expected)
    for name, shape in found.shapes().items():
        wanted = weights[name].shape[:1] + shape[1:] if shape[:1] == (-1,) else shape
        assert weights[name].shape == wanted
        assert weights[name].dtype == np.float32


def test_layers_of_planes_and_of_classes_are_stacked_in_their_order():
    state = served(model24("nugraph2").state_dict())
    weights = recognised(state, "nugraph2").weights(state)
    assert np.array_equal(
        weights["planar.hidden.weight"][2, 4], state["plane_net.net.y.node_net.0.net.4.weight"]
    )
    assert np.array_equal(
        weights["down.gate.weight"][1, 3],
        state["nexus_net.nexus_down.v.edge_net.0.net.3.weight"][0],
    )
    assert np.array_equal(
        weights["nexus.output.bias"][2], state["nexus_net.nexus_net.2.net.2.bias"]
    )
    semantic = weights["heads.semantic.weight"][1].reshape(5, 5, 64)
    for index in range(5):
        own = state[f"semantic_decoder.net.v.net.{index}.weight"][0]
        assert np.array_equal(semantic[index, index], own)
        assert not np.delete(semantic[index], index, axis=0).any()


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


@pytest.mark.parametrize("name", CASES25)
def test_the_encoder_does_what_the_input_norm_did(name):
    found, state = case25(name)
    weights = found.weights(state)
    with np.load(folder25() / f"{name}.npz") as arrays:
        x, encoded = arrays["x"].astype(np.float64), arrays["encoded"]
    weight, bias = weights["encoder.weight"], weights["encoder.bias"]
    if found.network.kind == "nugraph2":
        assert encoded.shape[1:] == (len(x), *weight.shape[1:3])
        actual = np.tanh(np.einsum("pchf,nf->pnch", weight, x) + bias[:, None])
    else:
        actual = x @ weight[0].T + bias[0]
    assert np.abs(actual - encoded).max() < 1e-5 * np.abs(encoded).max()


def test_what_a_model_of_today_calls_its_layers_is_known():
    found, state = case25("two_planes")
    weights = found.weights(state)
    assert np.array_equal(
        weights["up.hidden.weight"][0], state["core_net.plane_to_nexus.net.0.weight"]
    )
    assert np.array_equal(
        weights["from_event.gate.weight"],
        state["core_net.interaction_to_nexus.edge_net.0.weight"][0],
    )
    for index in range(2):
        assert np.array_equal(
            weights["heads.spacepoint.weight"][index],
            state[f"spacepoint_decoder.net.{index}.weight"],
        )
    assert np.array_equal(
        weights["heads.instance.weight"][0], state["instance_decoder.coord_net.weight"]
    )


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


def test_a_new_head_needs_one_row(monkeypatch):
    state = served(model24("24.7.1").state_dict())
    rng = np.random.default_rng(0)
    for plane in UVY:
        state[f"charge_decoder.net.{plane}.weight"] = rng.normal(size=(2, 128))
        state[f"charge_decoder.net.{plane}.bias"] = rng.normal(size=2)
    assert "unexpected charge_decoder" in refusal(state, "nugraph3")
    row = HeadRow("charge", "x_charge", "hit", "none", ("charge_decoder.net.{plane}",))
    monkeypatch.setattr(generations, "HEADS", (*generations.HEADS, row))
    found = recognised(state, "nugraph3")
    assert (found.heads[-1].output, found.heads[-1].width) == ("x_charge", 2)
    assert found.weights(state)["heads.charge.weight"].shape == (3, 2, 128)


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


def test_the_other_architecture_is_named_where_its_weights_are_given():
    state = served(model24("nugraph2").state_dict())
    assert "import them with --model nugraph2" in refusal(state, "nugraph3")


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


def test_planes_that_the_weights_do_not_have_are_refused():
    state = served(model24("24.7.1").state_dict())
    with pytest.raises(ModelFilesError, match="with planes u, v: missing none, unexpected core"):
        recognised(state, "nugraph3", planes=("u", "v"))


def test_a_network_without_a_head_is_refused():
    state = served(model24("24.7.1").state_dict())
    bare = {name: array for name, array in state.items() if "_decoder." not in name}
    assert "heads none" in refusal(bare, "nugraph3")


def test_a_network_of_another_kind_is_refused_in_one_short_line():
    with pytest.raises(ModelFilesError) as caught:
        recognise({f"layer{i}.weight": (3, 3) for i in range(500)}, "nugraph2")
    assert len(str(caught.value)) < 1500
    assert "missing" in refusal({}, "nugraph3")
