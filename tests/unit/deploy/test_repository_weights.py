import json
from pathlib import Path

import pytest

from deploy.errors import RepositoryError
from deploy.paths import MODEL_REPOSITORY
from deploy.repository.config import WeightFacts
from deploy.repository.stage import read_weight_facts, read_weights_digest
from deploy.repository.weights import (
    ClassCounts,
    check_classes,
    check_digest,
    class_counts,
    read_shapes,
)

FACTS = WeightFacts(
    semantic_classes=("track", "shower"), event_classes=("cc", "nc", "x"),
    heads=("semantic", "event"),
)  # fmt: skip


def write_weights(path: Path, **shapes: tuple[int, ...]) -> Path:
    """Write a safetensors file of zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"a": "b"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path


def _heads(planes: int, classes: int, event: int | None) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"semantic_decoder.net.{plane}.bias": (classes,) for plane in "uvy"[:planes]
    }
    return shapes | ({"event_decoder.net.bias": (event,)} if event is not None else {})


@pytest.mark.parametrize("model", ["nugraph2", "nugraph3"])
def test_the_tracked_weights_are_what_their_cards_say(model: str) -> None:
    folder = MODEL_REPOSITORY / model / "1"
    digest, facts = read_weights_digest(folder), read_weight_facts(folder)
    assert digest is not None
    check_digest(folder / "weights.safetensors", digest)
    check_classes(folder / "weights.safetensors", facts)
    counts = class_counts(read_shapes(folder / "weights.safetensors"))
    assert counts == ClassCounts(
        frozenset({len(facts.semantic_classes)}), len(facts.event_classes) or None
    )


def test_one_flipped_byte_is_noticed(tmp_path: Path) -> None:
    tracked = MODEL_REPOSITORY / "nugraph3" / "1"
    content = bytearray((tracked / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(RepositoryError, match="is not the file that"):
        check_digest(tmp_path / "weights.safetensors", read_weights_digest(tracked) or "")


def test_classes_that_are_not_those_of_the_weights_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "w"
    check_classes(write_weights(path, **_heads(3, 2, 3)), FACTS)
    with pytest.raises(RepositoryError, match="tells 7 classes of hits apart"):
        check_classes(write_weights(path, **_heads(3, 7, 3)), FACTS)
    with pytest.raises(RepositoryError, match="tells 0 classes of events apart"):
        check_classes(write_weights(path, **_heads(3, 2, None)), FACTS)
    uneven = {**_heads(2, 2, 3), "semantic_decoder.net.y.bias": (5,)}
    with pytest.raises(RepositoryError, match="tells 2 and 5 classes of hits apart"):
        check_classes(write_weights(path, **uneven), FACTS)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x08", b"\xff" * 8, (5).to_bytes(8, "little") + b"12345",
     (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b'{"a":"b"}'],
)  # fmt: skip
def test_something_else_than_weights_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(RepositoryError, match="not a safetensors file"):
        read_shapes(tmp_path / "w")


def test_weights_that_are_cut_off_are_named(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "w", a=(10,))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RepositoryError, match="is cut off"):
        read_shapes(path)
