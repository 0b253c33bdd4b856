"""What the README and the pages in docs/ say is so, and the Python that they show runs.

Of the commands that they show: test_shown_commands.py.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels
from deploy.events.files import EventTensors
from deploy.events.inference import Answer
from deploy.events.results import ResultsWriter
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from scripts.benchmarks.heal import heal_document
from scripts.benchmarks.readme import replace_section, section, stored_runs, summary
from scripts.documentation.floors import ROOMS
from tests.pages import PAGES, README, blocks

SNIPPETS = {  # and the test that runs them
    "README.md": ["tests/integration/test_documentation.py"],
    "client.md": ["tests/integration/test_documentation.py"],
    "own-network.md": ["test_the_head_that_is_shown_is_a_row_of_that_table"],
    "physicist.md": ["test_the_lines_for_physicists_read_a_results_file"],
}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 180


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    text = page.read_text()
    roots = "deploy|scripts|docs|envs|gallery|tests|containers|model_repository"
    named = re.findall(rf"`(?:python3? )?((?:{roots})/[\w/.-]+)", text)
    assert [path for path in named if not (CHECKOUT / path).exists()] == []
    modules = re.findall(rf"`((?:{'|'.join(ROOMS)})/\w+\.py)", text)  # as the kit's own are named
    assert [path for path in modules if not (CHECKOUT / "deploy" / path).exists()] == []
    links = re.findall(r"\]\(((?!http|#)[^)#]+)[^)]*\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    for page in (CHECKOUT / "docs").glob("*.md"):
        assert f"](docs/{page.name}" in README.read_text()


def test_each_snippet_of_python_is_run_by_a_test() -> None:
    shown = {page.name: len(found) for page in PAGES if (found := blocks(page, "python"))}
    assert shown == {name: len(tests) for name, tests in SNIPPETS.items()}
    for tests in SNIPPETS.values():
        assert all((CHECKOUT / test).exists() or test in globals() for test in tests)


def test_figures_are_those_of_the_stored_runs() -> None:
    runs = stored_runs(CHECKOUT / "scripts" / "data" / "speed")
    page = CHECKOUT / "docs" / "benchmarks.md"
    assert README.read_text() == replace_section(README.read_text(), summary(runs["speed"]))
    assert page.read_text() == replace_section(page.read_text(), section(**runs))


def test_what_is_stored_of_healing_is_shown() -> None:
    runs = stored_runs(CHECKOUT / "scripts" / "data" / "speed")
    runs["heal"] = heal_document([1.2, 1.6, 1.9])
    shown = " ".join(section(**runs).split())
    assert "all instances answer, after 1.6 s (median of 3 times; the longest 1.9 s)." in shown


def test_the_accuracy_is_that_of_the_demo_weights() -> None:
    names = ("nugraph2", "nugraph3")
    cards = [json.loads((MODEL_REPOSITORY / name / "1/model.json").read_text()) for name in names]
    assert all(card["demo"] for card in cards)
    two, three = (card["accuracy"] for card in cards)
    assert min(a["semantic"] - a["semantic_largest_class"] for a in (two, three)) > 0.15

    def row(what: str, *cells: str) -> str:
        return f"| {' | '.join((what, *cells))} |".replace("  ", " ")

    def both(key: str) -> list[str]:
        return [f"{accuracy[key]:.1%}" for accuracy in (two, three)]

    def recall(name: str) -> list[str]:
        found = [accuracy["semantic_recall"].get(name) for accuracy in (two, three)]
        return ["" if share is None else f"{share:.1%}" for share in found]

    largest = "{:.1%}, the largest class".format
    larger = f"{three['filter_largest_class']:.1%}, the larger of the two"
    vertex, mean = three["vertex_median_cm"], three["vertex_median_cm_of_the_mean"]
    event = largest(three["event_largest_class"])
    rows = [
        row("hits labelled correctly", *both("semantic"), largest(three["semantic_largest_class"])),
        row("signal or noise correct", *both("filter"), larger),
        row("event class correct", "", f"{three['event']:.1%}", event),
        row("vertex, median distance", "", f"{vertex:.0f} cm", f"{mean:.0f} cm, the mean vertex"),
        *(row(f"{name} hits found", *recall(name), "") for name in ("michel", "diffuse", "kaon")),
    ]
    page = (CHECKOUT / "docs" / "physicist.md").read_text()
    assert [line for line in rows if line not in page] == []


def snippet(name: str) -> str:
    (lines,) = blocks(CHECKOUT / "docs" / name, "python")
    return lines


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
    found: dict[str, Any] = {}
    exec(snippet("physicist.md"), found)
    assert found["event_id"].tolist() == [[1, 2, 3]] * 3
    assert found["hit_id"].tolist() == [4, 7, 9]
    assert [found["classes"][label] for label in found["label"]] == ["HIP", "MIP", "HIP"]
    assert found["signal"].tolist() == [True, True, False]


def test_the_head_that_is_shown_is_a_row_of_that_table() -> None:
    """What it leads to is followed in tests/unit/numl_serving/test_own_network.py."""
    (shown,) = ast.parse(snippet("own-network.md")).body
    test = (CHECKOUT / "tests/unit/numl_serving/test_own_network.py").read_text()
    (made,) = (
        node.value
        for node in ast.parse(test).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MOMENTUM"
    )
    assert ast.unparse(shown) == f"({ast.unparse(made)},)"
