"""The C++ client, as clients/cpp/check built it, against real servers and scripted ones."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.kit import Kit
from tests.programs import run_program


def only_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Return the line that is all that it says as it ends with this status."""
    assert done.returncode == status, done
    [line] = done.stderr.splitlines()
    name, _, said = line.partition(": ")
    assert name == "numl-label"
    return said


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    kit = Kit(tmp_path_factory.mktemp("state"))
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def program():
    """The built numl-label; these tests are started by clients/cpp/check, which names it."""
    return Path(os.environ["NUML_LABEL"])


@pytest.fixture(scope="session")
def label(program):
    """Run numl-label with these words."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return run_program([program, *map(str, words)], timeout=120)

    return run
