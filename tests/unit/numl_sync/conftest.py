"""The agent's modules are imported from their source: the kit's own Python has its requirements."""

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "envs" / "numl"), str(Path(__file__).parent)]

from played import Stage, expected  # noqa: E402

from numl_formats.config import render_config  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def rendered_once():
    """An agent renders the same configurations at each step; here it is hundreds of steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numl_sync.templates.render_config", cache(render_config))
        yield


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
