"""The C++ client, as clients/cpp/check built it, against real servers and scripted ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import Kit

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    kit = Kit(tmp_path_factory.mktemp("state"))
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def program() -> Path:
    """The built numl-label; these tests are started by clients/cpp/check, which names it."""
    return Path(os.environ["NUML_LABEL"])


@pytest.fixture(scope="session")
def label(program: Path) -> Program:
    """Run numl-label with these words."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
        )

    return run
