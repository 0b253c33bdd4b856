"""The scripts around the .sif, as far as they go without engine and root."""

import os
import subprocess

import pytest

from deploy.artefacts.tools import install_hint
from deploy.host.paths import CHECKOUT
from tests.programs import run_program

INSTALL = CHECKOUT / "scripts" / "install_container_tools"


def _install(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program([INSTALL, *words], env={**os.environ, **variables})


@pytest.mark.parametrize(
    "release",
    [
        {"ID": "almalinux", "ID_LIKE": "rhel centos fedora", "VERSION_ID": "9.4"},
        {"ID": "rhel", "ID_LIKE": "fedora", "VERSION_ID": "9.4"},
        {"ID": "fedora", "VERSION_ID": "42"},
    ],
    ids=lambda release: release["ID"],
)
def test_elsewhere_it_prints_the_line_that_the_build_names_too(release, tmp_path):
    file = tmp_path / "os-release"
    file.write_text("".join(f'{name}="{value}"\n' for name, value in release.items()))
    done = _install(OS_RELEASE=str(file))
    assert done.returncode == 1
    assert done.stdout == install_hint(release) + "\n"
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", ["ID=arch\n", ""])
def test_on_an_unknown_distribution_it_names_the_projects_page(content, tmp_path):
    file = tmp_path / "os-release"
    file.write_text(content)
    done = _install(OS_RELEASE=str(file))
    assert done.returncode == 1
    assert "https://apptainer.org/docs" in done.stderr


def test_help_needs_no_root():
    done = _install("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: scripts/install_container_tools")


@pytest.mark.parametrize("words", [["--only"], ["--only", "x"], ["--prefix", "here"], ["--what"]])
def test_wrong_usage_is_one_line(words):
    done = _install(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("install_container_tools: ")
    assert len(done.stderr.splitlines()) == 1
