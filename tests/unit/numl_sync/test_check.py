"""What is made of the output of the check, which runs in the environment of the models."""

import json
from pathlib import Path

import pytest
from numl_sync.check import check_answers
from numl_sync.errors import ReleaseError

NOISE = "{'a': 'dictionary that a library prints'}\n{broken\n"
VERSIONS = [Path("/in/nu-2")]


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Makes a shell script take the place of the check's Python."""

    def play(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr("numl_sync.check.sys.executable", str(program))

    return play


def printing(text: str, status: int = 0) -> str:
    return f"cat <<'END'\n{text}END\nprintf 'Traceback\\nOSError: no memory\\n' >&2\nexit {status}"


def report(error: str | None) -> str:
    return json.dumps({"model": "/in/nu-2", "ok": error is None, "error": error}) + "\n"


def nothing() -> None:
    pass


def test_what_libraries_print_beside_the_reports_is_passed_over(played):
    played(printing(NOISE + report(None)))
    check_answers(VERSIONS, nothing)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (NOISE + report("/in/nu-2/x: bad"), 1, "nu-2 does not give its golden answer here: x: bad"),
        (NOISE, 1, "golden answers cannot be computed here: OSError: no memory"),
        (NOISE, 0, "golden answers cannot be computed here"),
        ('{"ok": false}\n', 1, "golden answers cannot be computed here"),
    ],
)
def test_a_release_is_refused_for_anything_else(played, text, status, words):
    played(printing(text, status))
    with pytest.raises(ReleaseError, match=words):
        check_answers(VERSIONS, nothing)


def test_while_it_takes_long_something_else_is_done(played, tmp_path, monkeypatch):
    monkeypatch.setattr("numl_sync.check.MEANWHILE_S", 0.01)
    may_end = tmp_path / "may-end"
    played(f"until [ -e {may_end} ]; do sleep 0.01; done\n{printing(report(None))}")
    check_answers(VERSIONS, may_end.touch)
    assert may_end.exists()


def test_one_that_does_not_end_is_ended(played, monkeypatch):
    monkeypatch.setattr("numl_sync.check.MEANWHILE_S", 0.01)
    monkeypatch.setattr("numl_sync.check.LONGEST_S", 0)
    played("exec sleep 3600")
    with pytest.raises(ReleaseError, match="no golden answers after 0 s"):
        check_answers(VERSIONS, nothing)


def test_none_stays_when_the_agent_is_told_to_end(played, monkeypatch):
    def end() -> None:
        raise SystemExit(0)

    monkeypatch.setattr("numl_sync.check.MEANWHILE_S", 0.01)
    played("exec sleep 3600")
    with pytest.raises(SystemExit):
        check_answers(VERSIONS, end)
