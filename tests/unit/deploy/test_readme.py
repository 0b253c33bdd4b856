"""What the README says must be so."""

import json
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
import pytest

from deploy.client.answers import Labels
from deploy.client.events import EventTensors
from deploy.client.inference import Answer
from deploy.client.results import ResultsWriter
from deploy.client.transport import ServedModel
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


def test_the_lines_for_physicists_read_a_results_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {
        "hit_table_hit_id": np.array([4, 7, 9], dtype=np.int32),
        "hit_table_local_plane": np.array([0, 1, 2], dtype=np.int32),
    }
    labels = Labels(
        EventTensors((1, 2, 3), "my_events.h5", MappingProxyType(tensors)),
        ("u", "v", "y"),
        {
            "x_semantic": np.float32([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]),
            "x_filter": np.float32([0.5, 0.9, 0.1]),
        },
    )
    model = ServedModel("nugraph3", {}, (), {"semantic_classes": "MIP,HIP"})
    with ResultsWriter(tmp_path / "results.h5", model, "http://localhost:8000") as writer:
        writer.add(Answer(labels, 0.01, 0))
    monkeypatch.chdir(tmp_path)
    section = README.partition("## For physicists\n")[2].partition("\n## ")[0]
    (lines,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    found: dict[str, Any] = {"h5py": h5py}
    exec(lines, found)
    assert found["event_id"].tolist() == [[1, 2, 3]] * 3
    assert found["hit_id"].tolist() == [4, 7, 9]
    assert [found["classes"][label] for label in found["label"]] == ["HIP", "MIP", "HIP"]
    assert found["signal"].tolist() == [True, True, False]
