"""The agent's modules are imported from their source: the kit's own Python has its requirements."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "envs" / "numl"), str(Path(__file__).parent)]

from played import Stage, expected  # noqa: E402


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "mirror")


@pytest.fixture
def serving(stage):
    """One that serves release 1."""
    stage.bucket.publish(1, 1)
    stage.run(10)
    assert stage.tree() == expected(1)
    stage.said.clear()
    return stage
