"""The parts of the documentation's site that are made from the kit itself."""

import re
import subprocess
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.host.failures import TABLE
from deploy.host.paths import CHECKOUT
from deploy.main import COMMANDS
from scripts.documentation.pages import (
    FAILURES,
    failures_tables,
    from_the_top,
    marked,
    scripts_page,
)


def test_the_menu_has_every_command():
    menu = (CHECKOUT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"reference/(\w+)\.md", menu)) == sorted([*COMMANDS, "scripts"])


def test_every_failure_is_on_the_page():
    assert {id(each) for rows in FAILURES.values() for each in rows} == set(map(id, TABLE))
    text = unescape(failures_tables())
    plain = [cause for _, cause, _ in TABLE if "{" not in cause]
    assert plain
    assert [cause for cause in plain if cause.replace("|", r"\|") not in text] == []
    assert not re.search(r"[{}\0\1]", re.sub(r"\{\w*\.\w*\}", "", text))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == len(TABLE) + len(FAILURES)


def test_the_page_of_scripts_asks_programs_for_their_help_and_runs_no_module(monkeypatch):
    asked = set()

    def run(words: list[str | Path], **_: object) -> SimpleNamespace:
        asked.add(Path(words[1]).name)
        return SimpleNamespace(stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    scripts_page()
    assert {"benchmark.py", "infer.py", "plan_campaign.py"} < asked
    assert not {"environments.py", "nugraph25.py"} & asked


@pytest.mark.slow
def test_every_mark_of_a_page_is_replaced():
    pages = "".join(path.read_text() for path in (CHECKOUT / "docs").glob("*.md"))
    assert set(re.findall(r"^<!-- (\w+) -->$", pages, re.M)) == set(marked())


def test_links_of_the_readme_lead_to_pages_of_the_site():
    page = from_the_top("README.md")
    assert "](physicist.md#the-demo-weights)" in page
    assert "](changelog.md)" in page
    assert "](scripts/data/event_display.png)" in page
    assert "docs/" not in re.sub(r"`[^`]*`", "", page)
    assert "](LICENSE)" not in page
