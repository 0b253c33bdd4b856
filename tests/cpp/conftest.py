"""The C++ client, as clients/cpp/check built it, against real servers and scripted ones."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import Kit
from tests.programs import run_program

Program = Callable[..., "subprocess.CompletedProcess[str]"]


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
