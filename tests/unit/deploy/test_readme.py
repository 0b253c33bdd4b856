"""What the README says must be so."""

import json
import re

import pytest

from deploy.main import COMMANDS
from deploy.paths import CHECKOUT, MODEL_REPOSITORY

README = (CHECKOUT / "README.md").read_text()


def test_every_command_is_in_the_table() -> None:
    for command in COMMANDS:
        assert re.search(rf"^\| `python3 deploy/{command}\.py[ `]", README, re.M)


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"`(?:python3 )?((?:deploy|scripts)/[\w/.-]+)", README)
    named += re.findall(r"\]\(((?!http|#)[^)]+)\)", README)
    assert named
    assert [path for path in named if not (CHECKOUT / path).exists()] == []


@pytest.mark.parametrize("model", ["nugraph2", "nugraph3"])
def test_the_accuracy_is_that_of_the_demo_weights(model: str) -> None:
    card = json.loads((MODEL_REPOSITORY / model / "1" / "model.json").read_text())
    assert card["demo"]
    accuracy = card["accuracy"]
    row = (
        f"| {model} | {accuracy['semantic']:.0%} | {accuracy['semantic_largest_class']:.0%} "
        f"| {accuracy['filter']:.0%} | {accuracy['filter_largest_class']:.0%} |"
    )
    assert row in README
    assert accuracy["semantic"] > accuracy["semantic_largest_class"] + 0.15
