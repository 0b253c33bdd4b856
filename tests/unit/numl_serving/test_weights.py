"""Weights are read with numpy alone, and only those that the card describes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from numl_serving.errors import ModelFilesError
from numl_serving.weights import read_weights
from safetensors.numpy import save
from small_models import NUGRAPH3, random_weights, write_model

from numl_formats.cardfile import read_card


def test_a_file_of_the_safetensors_library_is_read(tmp_path):
    weights = random_weights(NUGRAPH3)
    write_model(tmp_path)
    content = save(weights, metadata={"format": "np"})
    store(tmp_path, content)
    read = read_weights(tmp_path, read_card(tmp_path / "model.json"))
    assert read.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(read[name], array)


def store(folder: Path, content: bytes) -> None:
    """Write weights, and their digest into the card."""
    (folder / "weights.safetensors").write_bytes(content)
    path = folder / "model.json"
    card = json.loads(path.read_text())
    card["weights"]["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(card))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        read_weights(folder, read_card(folder / "model.json"))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"other": np.zeros(3, np.float32)}, "weight other is not in the network"),
        ({"encoder.bias": np.zeros((3, 9), np.float32)}, "weight encoder.bias has shape [3, 9]"),
        ({"encoder.bias": np.zeros((3, 8))}, "encoder.bias is float64"),
        ({"encoder.bias": np.zeros((3, 8), np.int32)}, "encoder.bias is int32"),
    ],
)
def test_weights_that_are_not_those_of_the_network_are_refused(tmp_path, changed, said):
    write_model(tmp_path)
    store(tmp_path, save(random_weights(NUGRAPH3) | changed))
    assert said in refusal(tmp_path)


def test_a_file_that_is_not_that_of_the_card_is_refused(tmp_path):
    write_model(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"")
    assert "sha256 differs" in refusal(tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    assert "weights.safetensors cannot be read" in refusal(tmp_path)


def test_weights_of_each_plane_need_biases_of_each_plane(tmp_path):
    write_model(tmp_path)
    weights = random_weights(NUGRAPH3)
    for name in ("planar.hidden.bias", "heads.filter.weight"):
        store(tmp_path, save(weights | {name: weights[name][:1]}))
        layer = name.rpartition(".")[0]
        assert f"weight {layer}.bias is for" in (told := refusal(tmp_path))
        assert f"but {layer}.weight is for" in told


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        bytes(20),
        b"\xff" * 20,
        b"\2" + bytes(7) + b"[]",
        b'8\0\0\0\0\0\0\0{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}} \0\0',
        save(random_weights(NUGRAPH3))[:-1],
    ],
    ids=["nothing", "a byte", "zeros", "ones", "a list", "bfloat16", "truncated"],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    write_model(tmp_path)
    store(tmp_path, content)
    assert "is not a safetensors file of float32 arrays" in refusal(tmp_path)
