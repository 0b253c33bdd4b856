"""What the README and the pages in docs/ say is so, and the Python that they show runs.

Of the commands that they show: test_shown_commands.py.
"""

import ast
import re
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels
from deploy.events.files import EventTensors
from deploy.events.inference import Answer
from deploy.events.results import ResultsWriter
from deploy.host.paths import CHECKOUT
from scripts.benchmarks.pages import replace_section
from scripts.benchmarks.readme import BEGIN, END, section, stored_runs, summary
from scripts.documentation.floors import ROOMS
from tests.pages import PAGES, README, blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page):
    text = page.read_text()
    roots = "deploy|scripts|docs|envs|gallery|tests|containers|model_repository"
    named = re.findall(rf"`(?:python3? )?((?:{roots})/[\w/.-]+)", text)
    assert [path for path in named if not (CHECKOUT / path).exists()] == []
    modules = re.findall(rf"`((?:{'|'.join(ROOMS)})/\w+\.py)", text)  # as the kit's own are named
    assert [path for path in modules if not (CHECKOUT / "deploy" / path).exists()] == []
    links = re.findall(r"\]\(((?!http|#)[^)#]+)[^)]*\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_reached_from_the_readme():
    for page in (CHECKOUT / "docs").glob("*.md"):
        assert f"](docs/{page.name}" in README.read_text()


def test_figures_are_those_of_the_stored_runs():
    runs = stored_runs(CHECKOUT / "scripts" / "data" / "speed")
    page = CHECKOUT / "docs" / "benchmarks.md"
    assert README.read_text() == replace_section(
        README.read_text(), summary(runs["speed"]), BEGIN, END
    )
    assert page.read_text() == replace_section(page.read_text(), section(**runs), BEGIN, END)


def snippet(name: str) -> str:
    (lines,) = blocks(CHECKOUT / "docs" / name, "python")
    return lines


def test_the_lines_for_physicists_read_a_results_file(tmp_path, monkeypatch):
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
    found: dict[str, Any] = {}
    exec(snippet("physicist.md"), found)
    assert found["event_id"].tolist() == [[1, 2, 3]] * 3
    assert found["hit_id"].tolist() == [4, 7, 9]
    assert [found["classes"][label] for label in found["label"]] == ["HIP", "MIP", "HIP"]
    assert found["signal"].tolist() == [True, True, False]


def test_the_head_that_is_shown_is_a_row_of_that_table():
    """What it leads to is followed in tests/unit/numl_serving/test_own_network.py."""
    (shown,) = ast.parse(snippet("own-network.md")).body
    test = (CHECKOUT / "tests/unit/numl_serving/test_own_network.py").read_text()
    (made,) = (
        node.value
        for node in ast.parse(test).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MOMENTUM"
    )
    assert ast.unparse(shown) == f"({ast.unparse(made)},)"
