import dataclasses
import json
from functools import partial
from unittest.mock import Mock

import pytest

from deploy.commands import doctor
from deploy.host.errors import KitError
from deploy.host.finding import Finding, distinct, ok, wrong


def _mend(said: str) -> str:
    if said == "in use":
        raise KitError("in use")
    return said


FINE = ok("ports", "8000 is free")
WARNING = Finding("warning", "room", "disk too small [[gpu]]", "a larger one")
PROBLEM = Finding(
    "problem", "leftovers", "3 regions", "--fix removes them", partial(_mend, "removed 3")
)


@pytest.fixture
def finds(monkeypatch):
    """Have doctor find what it is told to, one list after the other."""

    def patched(*rounds: list[Finding]) -> Mock:
        examine = Mock(side_effect=rounds)
        monkeypatch.setattr(doctor, "examine_everything", examine)
        return examine

    return patched


def test_the_list_tells_finding_detail_and_remedy_and_nothing_is_mended(finds, capsys):
    finds([FINE, WARNING, PROBLEM])
    assert doctor.main([]) == 1
    assert capsys.readouterr().out == (
        "ok       ports: 8000 is free\n"
        "warning  room: disk too small [[gpu]]\n"
        "         try: a larger one\n"
        "problem  leftovers: 3 regions\n"
        "         try: --fix removes them\n"
        "1 problem, 1 warning\n"
    )


@pytest.mark.parametrize(("columns", "width"), [("60", 80), ("90", 90), ("300", 100)])
def test_the_list_fits_the_terminal_and_keeps_paths_whole(
    columns, width, finds, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", columns)
    path = f"/{'long-folder/' * 12}file"
    finds([Finding("warning", "room", "word " * 60 + path, "numlkit up --engine docker " * 12)])
    doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    assert path in [line.strip() for line in lines]
    widths = {len(line) for line in lines if path not in line}
    assert width - 8 < max(widths) <= width
    assert all(line.startswith(" " * 9) for line in lines[1:-1])


def test_the_same_cause_is_told_once_and_at_its_worst():
    warning = wrong("engine local", KitError("no Python 3.11", "install one"), "warning")
    problem = wrong("engine", KitError("no Python 3.11", "install one"))
    other = wrong("engine docker", KitError("no engine", None), "warning")
    mends = [dataclasses.replace(PROBLEM, fix=partial(_mend, said)) for said in ("one", "other")]
    assert distinct([FINE, warning, other, problem, *mends]) == [FINE, problem, other, *mends]


def test_warnings_alone_are_nothing_wrong(finds):
    finds([FINE, WARNING])
    assert doctor.main(["--quiet"]) == 0


def test_fix_says_what_it_did_and_looks_again(finds, capsys):
    stays = Finding("problem", "leftovers", "a folder", "wait", partial(_mend, "in use"))
    finds([PROBLEM, stays, WARNING], [stays])
    assert doctor.main(["--fix", "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "fixed: removed 3",
        "not fixed: in use",
        "1 problem, 0 warnings",
    ]


def test_machines_get_one_document(finds, capsys):
    finds([PROBLEM], [FINE])
    assert doctor.main(["--fix", "--json"]) == 0
    fine = {"level": "ok", "finding": "ports", "detail": "8000 is free", "remedy": None}
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "findings": [{**fine, "fixable": False}],
        "fixes": [{"ok": True, "said": "removed 3"}],
    }


def test_it_looks_after_the_deployment_that_is_named(finds, tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('name = "site"\nengine = "docker"\n')
    examine = finds([], [])
    doctor.main([str(file), "--quiet"])
    doctor.main(["--name", "other", "--quiet"])
    found = [(deployment.name, deployment.engine) for (deployment,), _ in examine.call_args_list]
    assert found == [("site", "docker"), ("other", "auto")]


def test_a_deployment_file_that_is_none_is_wrong_usage(tmp_path):
    assert doctor.main([str(tmp_path / "no.toml"), "--quiet"]) == 2
