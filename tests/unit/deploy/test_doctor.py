import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy import doctor
from deploy.checks.finding import Finding, ok
from deploy.deployment import Deployment
from deploy.errors import KitError


@dataclass(frozen=True)
class Mend:
    said: str

    def apply(self) -> str:
        if self.said == "in use":
            raise KitError("in use")
        return self.said


FINE = ok("ports", "8000 is free")
WARNING = Finding("warning", "room", "disk too small [[gpu]]", "a larger one")
PROBLEM = Finding("problem", "leftovers", "3 regions", "--fix removes them", Mend("removed 3"))


class Host:
    """Finds what it is told to, one list after the other."""

    def __init__(self, *rounds: list[Finding]) -> None:
        self.rounds = list(rounds)
        self.deployments: list[Deployment] = []

    def __call__(self, deployment: Deployment) -> list[Finding]:
        self.deployments.append(deployment)
        return self.rounds.pop(0)


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> type[Host]:
    class Patched(Host):
        def __init__(self, *rounds: list[Finding]) -> None:
            super().__init__(*rounds)
            monkeypatch.setattr(doctor, "examine_everything", self)

    return Patched


def test_the_table_tells_finding_detail_and_remedy(
    finds: type[Host], capsys: pytest.CaptureFixture[str]
) -> None:
    finds([FINE, WARNING, PROBLEM])
    assert doctor.main([]) == 1
    assert capsys.readouterr().out == (
        "doctor\n"
        "           finding    detail                  remedy\n"
        "  ok       ports      8000 is free\n"
        "  warning  room       disk too small [[gpu]]  a larger one\n"
        "  problem  leftovers  3 regions               --fix removes them\n"
        "1 problem, 1 warning\n"
    )


def test_warnings_alone_are_nothing_wrong(finds: type[Host]) -> None:
    finds([FINE, WARNING])
    assert doctor.main(["--quiet"]) == 0


def test_nothing_is_mended_unless_asked_for(finds: type[Host]) -> None:
    host = finds([PROBLEM])
    assert doctor.main(["--quiet"]) == 1
    assert not host.rounds


def test_fix_says_what_it_did_and_looks_again(
    finds: type[Host], capsys: pytest.CaptureFixture[str]
) -> None:
    stays = Finding("problem", "leftovers", "a folder", "wait", Mend("in use"))
    finds([PROBLEM, stays, WARNING], [stays])
    assert doctor.main(["--fix", "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "fixed: removed 3",
        "not fixed: in use",
        "1 problem, 0 warnings",
    ]


def test_machines_get_one_document(finds: type[Host], capsys: pytest.CaptureFixture[str]) -> None:
    finds([PROBLEM], [FINE])
    assert doctor.main(["--fix", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "findings": [
            {
                "level": "ok",
                "finding": "ports",
                "detail": "8000 is free",
                "remedy": None,
                "fixable": False,
            }
        ],
        "fixes": [{"ok": True, "said": "removed 3"}],
    }


def test_it_looks_after_the_deployment_that_is_named(finds: type[Host], tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('name = "site"\nengine = "docker"\n')
    host = finds([], [])
    doctor.main([str(file), "--quiet"])
    doctor.main(["--name", "other", "--quiet"])
    assert [(d.name, d.engine) for d in host.deployments] == [("site", "docker"), ("other", "auto")]


def test_a_deployment_file_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    assert doctor.main([str(tmp_path / "no.toml"), "--quiet"]) == 2
