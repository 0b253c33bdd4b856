"""The scripts around the .sif, as far as they go without engine and root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.artefacts.tools import install_hint
from deploy.host.paths import CHECKOUT

INSTALL = CHECKOUT / "scripts" / "install_container_tools"
BENCHMARK = CHECKOUT / "scripts" / "benchmark_build.py"


def _install(*words: str, os_release: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if os_release is not None:
        environment["OS_RELEASE"] = str(os_release)
    return subprocess.run(
        [INSTALL, *words], env=environment, capture_output=True, text=True, check=False
    )


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
    done = _install(os_release=file)
    assert done.returncode == 1
    assert done.stdout == install_hint(release) + "\n"
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", ["ID=arch\n", ""])
def test_on_an_unknown_distribution_it_names_the_projects_page(content, tmp_path):
    file = tmp_path / "os-release"
    file.write_text(content)
    done = _install(os_release=file)
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


def _benchmark(*words: str | Path) -> subprocess.CompletedProcess[str]:
    # No engine answers there.
    environment = {**os.environ, "DOCKER_HOST": "tcp://127.0.0.1:1"}
    return subprocess.run(
        [sys.executable, BENCHMARK, *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--rounds", "0", "--rounds: '0' is not a number from 1 to"),
        ("--json", "nowhere/run.json", "nowhere/run.json cannot be written"),
    ],
)
def test_the_benchmark_refuses_what_it_cannot_do_before_it_measures(flag, value, said):
    done = _benchmark(flag, value)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_benchmark_that_fails_leaves_no_file_and_an_earlier_one_alone(tmp_path):
    run, earlier = tmp_path / "run.json", tmp_path / "earlier.json"
    earlier.write_text("{}\n")
    for path in (run, earlier):
        done = _benchmark("--json", path)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
    assert not run.exists()
    assert earlier.read_text() == "{}\n"
