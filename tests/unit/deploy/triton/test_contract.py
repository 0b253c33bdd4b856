"""The wire contract, against what a server may declare."""

import json
from typing import Any

import pytest
from google.protobuf import json_format

from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.card import read_card
from deploy.triton.config import read_config
from numl_formats.contract import INPUTS, Signature, Tensor, breach

Declared = dict[str, Any]


def declared(model: str = "nugraph3") -> tuple[Declared, Declared]:
    """Return metadata and configuration as a server answers them for a tracked model."""
    config = read_config(MODEL_REPOSITORY / model / "config.pbtxt")
    answer = json.loads(json_format.MessageToJson(config, preserving_proto_field_name=True))
    metadata = {
        f"{kind}s": [
            {
                "name": t["name"],
                "datatype": t["data_type"].removeprefix("TYPE_"),
                "shape": t["dims"],  # as text: so does JSON with long integers
            }
            for t in answer[kind]
        ]
        for kind in ("input", "output")
    }
    return metadata, answer


def card(model: str = "nugraph3") -> Signature:
    return read_card(MODEL_REPOSITORY / model / "1").signature


def tensor(metadata: Declared, name: str) -> Declared:
    return next(t for t in metadata["inputs"] + metadata["outputs"] if t["name"] == name)


@pytest.mark.parametrize("model", ["nugraph2", "nugraph2_cpu", "nugraph3"])
def test_the_tracked_models_keep_the_contract(model):
    wanted = card(model)
    assert wanted.inputs == {name: Tensor(name, type_, (-1,)) for name, type_ in INPUTS.items()}
    assert breach(Signature.read(*declared(model)), wanted) is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("x_semantic_u", [-1, 11]),
        ("x_semantic_u", [-1, -1]),
        ("e_evt", [1, 4]),
        ("e_evt", [9]),
        ("e_evt", [-1]),
    ],
)
def test_the_number_of_classes_is_a_matter_of_the_weights(name, shape):
    metadata, config = declared()
    tensor(metadata, name)["shape"] = shape
    assert breach(Signature.read(metadata, config), card()) is None


def test_weights_without_a_head_lack_its_outputs():
    metadata, config = declared("nugraph2")
    assert breach(Signature.read(metadata, config), card("nugraph2")) is None
    assert breach(Signature.read(metadata, config), card()) == (
        "output e_evt is missing; output v_evt is missing"
    )


def test_outputs_and_optional_inputs_may_be_added():
    metadata, config = declared()
    metadata["outputs"].append({"name": "more", "datatype": "INT64", "shape": [7]})
    metadata["inputs"].append({"name": "position", "datatype": "FP32", "shape": [-1]})
    config["input"].append({"name": "position", "optional": True})
    assert breach(Signature.read(metadata, config), card()) is None


def test_an_input_that_no_client_sends_breaks_it():
    metadata, config = declared()
    metadata["inputs"].append({"name": "position", "datatype": "FP32", "shape": [-1]})
    assert breach(Signature.read(metadata, config), card()) == (
        "input position is required, but no client sends it"
    )
    # Where the configuration is closed the golden event shows whether it is asked for.
    assert breach(Signature.read(metadata, {}), card()) is None


@pytest.mark.parametrize(("name", "change", "said"), [
    ("hit_table_rms", {"datatype": "FP64"}, "input hit_table_rms is FP64, expected FP32"),
    ("hit_table_rms", {"name": "rms"}, "input hit_table_rms is missing"),
    ("hit_table_rms", {"shape": [-1, -1]}, "input hit_table_rms has dims [-1, -1], expected [-1]"),
    ("x_semantic_v", {"shape": [7, -1]}, "output x_semantic_v has dims [7, -1], expected [-1, 7]"),
    ("x_filter_y", {"shape": [-1, 1]}, "output x_filter_y has dims [-1, 1], expected [-1]"),
    ("x_filter_y", {"datatype": "FP16"}, "output x_filter_y is FP16, expected FP32"),
    ("e_evt", {"shape": [4, 4]}, "output e_evt has dims [4, 4], expected [4]"),
    ("v_evt", {"shape": [3]}, "output v_evt has dims [3], expected [1, 3]"),
])  # fmt: skip
def test_what_breaks_it_is_named(name, change, said):
    metadata, config = declared()
    tensor(metadata, name).update(change)
    found = breach(Signature.read(metadata, config), card())
    assert found.startswith(said)


def test_many_faults_are_still_one_line():
    assert breach(Signature({}, {}), card()) == (
        "input hit_table_hit_id is missing; input hit_table_local_plane is missing; "
        "input hit_table_local_time is missing; and 15 more"
    )


@pytest.mark.parametrize("metadata", [{}, {"inputs": [{}], "outputs": []}, {"inputs": 1}])
def test_an_answer_that_is_none_is_an_error(metadata):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Signature.read(metadata, {})
