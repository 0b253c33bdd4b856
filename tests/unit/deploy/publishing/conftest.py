"""What several of these tests ask."""

from functools import partial

import pytest

from tests.unit.deploy.publishing.signing import without_cosign
from tests.unit.deploy.publishing.test_folder import publish_files, small_files


@pytest.fixture
def root(tmp_path):
    """A folder to publish to."""
    place = tmp_path / "place"
    place.mkdir()
    return place


@pytest.fixture
def publish(home, monkeypatch):
    """Publishes small files."""
    small_files(monkeypatch)
    without_cosign(monkeypatch)
    return partial(publish_files, home / "dist")
