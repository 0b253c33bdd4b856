"""What the README and the pages in docs/ say must be so."""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
import pytest

from deploy.arguments import Parser
from deploy.client import command as infer
from deploy.client.answers import Labels
from deploy.client.events import EventTensors
from deploy.client.inference import Answer
from deploy.client.results import ResultsWriter
from deploy.client.transport import ServedModel
from deploy.main import COMMANDS
from deploy.paths import CHECKOUT, MODEL_REPOSITORY

README = (CHECKOUT / "README.md").read_text()
PAGES = [CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *sorted((CHECKOUT / "docs").iterdir())]
NAMES = [page.name for page in PAGES]


def shown() -> Iterator[str]:
    """Yield what the pages show to be typed, in a console block or within a text."""
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            yield line.removeprefix("$ ").removeprefix("sudo ")
        yield from re.findall(r"`((?:python3 )?(?:deploy|scripts)/[^`]+)`", text)


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """Return the file and the words of each command of the kit that is shown with words."""
    found = {}
    for line in shown():
        words = shlex.split(line, comments=True)
        words = words[words[:1] == ["python3"] :]
        if len(words) > 1 and words[0].startswith(("deploy/", "scripts/")):
            found[words[0], tuple(word.strip("[]") for word in words[1:])] = None
    return list(found)


@cache
def parser(file: str) -> Parser | None:
    """Return a command's parser, or None for one that needs an execution environment, or bash."""
    if file == "scripts/infer.py":
        return infer._parser()
    module, folder = Path(file).stem, Path(file).parent.name
    return importlib.import_module(f"deploy.{module}").parser() if folder == "deploy" else None


@cache
def flags(file: str) -> frozenset[str]:
    """Return the flags that a command's help, or else its source, names."""
    found = parser(file)
    text = (CHECKOUT / file).read_text() if found is None else found.format_help()
    return frozenset(re.findall(r"--[a-z][a-z-]+", text))


def test_every_command_is_in_the_table() -> None:
    for command in COMMANDS:
        assert re.search(rf"^\| `python3 deploy/{command}\.py[ `]", README, re.M)


@pytest.mark.parametrize(("file", "words"), commands())
def test_every_command_that_is_shown_is_understood(file: str, words: tuple[str, ...]) -> None:
    if (found := parser(file)) is not None:
        found.parse_args(words)  # ends the test where it does not understand
    assert {word for word in words if word.startswith("--")} <= flags(file)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_flag_that_is_named_is_one_of_a_command(page: Path) -> None:
    files = [f"deploy/{name}.py" for name in COMMANDS]
    files += [f"scripts/{path.name}" for path in (CHECKOUT / "scripts").iterdir() if path.is_file()]
    known = frozenset().union(*map(flags, files), ["--semantic-classes", "--event-classes"])
    assert set(re.findall(r"`(--[a-z][a-z-]+)", page.read_text())) - known == set()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    text = page.read_text()
    roots = "deploy|scripts|docs|envs|tests|containers|model_repository"
    named = re.findall(rf"`(?:python3 )?((?:{roots})/[\w/.-]+)", text)
    assert [path for path in named if not (CHECKOUT / path).exists()] == []
    links = re.findall(r"\]\(((?!http|#)[^)#]+)[^)]*\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_within_a_page_leads_to_a_heading(page: Path) -> None:
    text = page.read_text()
    headings = {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_every_page_is_reached_from_the_readme() -> None:
    for page in (CHECKOUT / "docs").iterdir():
        assert f"](docs/{page.name})" in README


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
    rows = [
        row("hits labelled rightly", *both("semantic"), largest(three["semantic_largest_class"])),
        row("signal or noise rightly", *both("filter"), larger),
        row(
            "event class rightly",
            "",
            f"{three['event']:.1%}",
            largest(three["event_largest_class"]),
        ),
        row("vertex, median distance", "", f"{vertex:.0f} cm", f"{mean:.0f} cm, the mean vertex"),
        *(row(f"{name} hits found", *recall(name), "") for name in ("michel", "diffuse", "kaon")),
    ]
    assert [line for line in rows if line not in README] == []


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
