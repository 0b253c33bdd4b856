"""Real servers on loopback. The cache is the user's own; state goes to a scratch folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit import Kit


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    kit = Kit(tmp_path_factory.mktemp("state"))
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def demo(kit: Kit) -> dict[str, Any]:
    """A deployment of all models with the demo weights, for tests that leave it healthy."""
    return kit.up("demo")


@pytest.fixture
def single(kit: Kit) -> Iterator[dict[str, Any]]:
    """A small deployment of its own, for tests that do harm to it."""
    answer = kit.up("single", "--models", "nugraph3", "--instances", "1")
    yield answer
    kit.down("single")
