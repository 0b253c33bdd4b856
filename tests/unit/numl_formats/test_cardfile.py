"""A model card is read as it was written, and refused by the name of what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from numl_formats.cardfile import card_of, dump_card, parse_card, read_card
from numl_formats.errors import FormatError, NewerFormatError

DATA = Path(__file__).parent / "data"
CHECKOUT = Path(__file__).parents[3]


def content_of(model: str) -> dict[str, Any]:
    path = CHECKOUT / "model_repository" / model / "1" / "model.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def normalised(content: dict[str, Any]) -> dict[str, Any]:
    """Return a card with the normalisation that checkpoints of 24.7.1 need."""
    features = len(content["hit_features"])
    norm = {"mean": [0.5] * features, "std": [2.0] * features}
    return content | {"normalisation": dict.fromkeys(content["planes"], norm)}


@pytest.mark.parametrize("model", ["nugraph3", "nugraph2"])
def test_a_card_is_written_as_it_was_read(model):
    content = content_of(model)
    for each in (content, normalised(content)):
        assert json.loads(dump_card(parse_card(each))) == each


def test_a_card_with_a_wrong_field_is_refused_by_its_name(tmp_path):
    content = normalised(content_of("nugraph3"))
    network, head = content["network"], content["heads"][0]
    hit = {"output": "a", "node": "hit", "width": 2, "activation": "none", "classes": None}
    embedded = {"network": network | {"embedding": {"width": 2, "hidden": 4, "layers": 3}}}
    beta, instance = hit | {"name": "instance_beta", "width": 1}, hit | {"name": "instance"}
    of_event = {"output": "b", "node": "event"}
    cluster = {"output": "i", "embedding": "ox", "eps": 0.5, "min_samples": 5, "signal": None}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"surprise": 1}, "surprise is not a known field"),
        ({"weights": content["weights"] | {"sha256": "\ud800"}}, "weights.sha256 is '\\\\ud800'"),
        ({"heads": [hit | {"name": "a", "classes": ["\ud800", "b"]}]}, "classes is"),
        ({"network": network | {"kind": "nugraph9"}}, "network.kind is 'nugraph9'"),
        ({"network": network | {"iterations": 0}}, "network.iterations is 0"),
        ({"network": network | {"iterations": 1001}}, "iterations is 1001: expected .* to 1000"),
        ({"network": network | {"event_width": 0}}, "event_width"),
        ({"planes": ["u", "u"]}, "planes is"),
        ({"planes": ["u", "v"]}, "normalisation must have exactly the planes"),
        ({"hit_features": ["integral"]}, "normalisation.u needs 1 means"),
        ({"heads": []}, "heads is empty"),
        ({"heads": [head | {"node": "plane"}]}, r"heads\[0\].node is 'plane'"),
        ({"heads": [head | {"classes": ["a"]}]}, "head semantic has width 7 but names 1 classes"),
        ({"heads": [head, head]}, "must be unique"),
        ({"heads": [hit | {"name": "x"}]}, "outputs do not match"),
        (embedded, "network.embedding needs nugraph3 and its heads"),
        # The library writes numbers of every hit for these two, wherever the card has them.
        (embedded | {"heads": [beta, instance | of_event]}, "head instance needs node hit"),
        (embedded | {"heads": [beta | of_event, instance]}, "head instance_beta needs node hit"),
        ({"clustering": cluster | {"semantic": None, "background": 6}}, "needs a head with output"),
        ({"position_scale": [1]}, "position_scale"),
        ({"position_scale": [1, float("inf")]}, "position_scale"),
        ({"position_scale": [1, 10**400]}, "position_scale"),
        ({"normalisation": {}}, "normalisation"),
        ({"weights": {"file": "../w", "sha256": ""}}, "plain file name"),
        ({"weights": {}}, "weights.file is missing"),
        ({"demo": "yes"}, "demo is 'yes'"),
        ({"description": 1}, "description"),
        ({"inputs": []}, "inputs do not match"),
    ]
    for change, message in wrong:
        with pytest.raises(FormatError, match=message):
            parse_card(content | change)
    del content["source"]
    with pytest.raises(FormatError, match="source is missing"):
        parse_card(content)
    with pytest.raises(FormatError, match="not a model card"):
        parse_card([])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(FormatError, match=r"broken\.json: not JSON"):
        read_card(tmp_path / "broken.json")
    with pytest.raises(FormatError, match=r"none\.json cannot be read"):
        read_card(tmp_path / "none.json")


def test_a_card_of_the_first_release_is_read():
    card = read_card(DATA / "card-format-2.json")
    assert (card.network.kind, card.demo, card.clusters) == ("nugraph3", True, ())
    assert card.signature.inputs["hit_table_rms"].datatype == "FP32"
    assert card.signature.outputs["e_evt"].dims == (4,)


@pytest.mark.parametrize("written", [3, "2", None, True])
def test_a_card_of_a_newer_format_is_refused_in_one_line(written):
    with pytest.raises(NewerFormatError) as caught:
        parse_card({"format": written, "of the future": 1})
    assert str(caught.value) == (
        f"format {written!r}, but this release of the kit reads format 2: "
        "use one that is as new as what wrote it"
    )


def test_a_card_from_before_the_first_release_is_refused():
    with pytest.raises(FormatError, match=r"^format 1, which this release of the kit no longer"):
        parse_card({"format": 1})


def test_a_card_that_is_too_large_or_nested_is_refused():
    for content in (b" " * (1 << 20) + b"{}", b"[" * 100_000, b"\xff"):
        with pytest.raises(FormatError, match="not JSON"):
            card_of(content)
