"""What is made of the output of the check, which runs in the environment of the models."""

import json
import subprocess
from pathlib import Path

import pytest
from numl_sync.check import check_answers
from numl_sync.errors import ReleaseError

NOISE = "{'a': 'dictionary that a library prints'}\n{broken\n"


def printed(monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> None:
    done = subprocess.CompletedProcess([], status, text, "Traceback\nOSError: no memory\n")
    monkeypatch.setattr("numl_sync.check.subprocess.run", lambda *_, **__: done)


def report(error: str | None) -> str:
    return json.dumps({"model": "/in/nu-2", "ok": error is None, "error": error}) + "\n"


def test_what_libraries_print_beside_the_reports_is_passed_over(monkeypatch):
    printed(monkeypatch, NOISE + report(None))
    check_answers([Path("/in/nu-2")])


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (NOISE + report("/in/nu-2/x: bad"), 1, "nu-2 does not give its golden answer here: x: bad"),
        (NOISE, 1, "golden answers cannot be computed here: OSError: no memory"),
        (NOISE, 0, "golden answers cannot be computed here"),
        ('{"ok": false}\n', 1, "golden answers cannot be computed here"),
    ],
)
def test_a_release_is_refused_for_anything_else(monkeypatch, text, status, words):
    printed(monkeypatch, text, status)
    with pytest.raises(ReleaseError, match=words):
        check_answers([Path("/in/nu-2")])
