import json
import math
from pathlib import Path

import pytest

from deploy.host.errors import RepositoryError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.card import Head, check_digest, check_heads, read_card, read_shapes

HEADS = (Head("semantic", "x_semantic", 2, ("track", "shower")), Head("vertex", "v", 3))


def write_weights(path: Path, **shapes: tuple[int, ...]) -> Path:
    """Write a safetensors file of zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"a": "b"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path


@pytest.mark.parametrize("model", ["nugraph2", "nugraph3"])
def test_the_tracked_weights_are_what_their_cards_say(model: str) -> None:
    folder = MODEL_REPOSITORY / model / "1"
    card = read_card(folder)
    check_digest(folder / "weights.safetensors", card.sha256)
    check_heads(folder / "weights.safetensors", card.heads)


def test_one_flipped_byte_is_noticed(tmp_path: Path) -> None:
    tracked = MODEL_REPOSITORY / "nugraph3" / "1"
    content = bytearray((tracked / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(RepositoryError, match="is not the file that"):
        check_digest(tmp_path / "weights.safetensors", read_card(tracked).sha256)


def test_heads_that_are_not_those_of_the_card_are_named(tmp_path: Path) -> None:
    path, vertex = tmp_path / "w", {"heads.vertex.bias": (3,), "heads.vertex.weight": (3, 8)}
    check_heads(write_weights(path, **vertex, **{"heads.semantic.bias": (3, 2)}), HEADS)
    with pytest.raises(RepositoryError, match=r"head semantic has width 7; .* says 2"):
        check_heads(write_weights(path, **vertex, **{"heads.semantic.bias": (1, 7)}), HEADS)
    with pytest.raises(RepositoryError, match="head semantic has width 0"):
        check_heads(write_weights(path, **vertex), HEADS)
    with pytest.raises(RepositoryError, match=r"head vertex has width 3; .* says 0"):
        check_heads(write_weights(path, **vertex), ())


@pytest.mark.parametrize(
    "content",
    [b"", b"\x08", b"\xff" * 8, (5).to_bytes(8, "little") + b"12345",
     (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b'{"a":"b"}'],
)  # fmt: skip
def test_something_else_than_weights_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(RepositoryError, match="not a safetensors file"):
        read_shapes(tmp_path / "w")
