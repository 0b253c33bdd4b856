"""Real servers on loopback. The cache is the user's own; state goes to a scratch folder."""

import pytest

from tests.bucket import bucket  # noqa: F401
from tests.kit import Kit


@pytest.fixture(scope="session")
def kit(tmp_path_factory, pytestconfig):
    kit = Kit(tmp_path_factory.mktemp("state"), triton=pytestconfig.getoption("--triton"))
    yield kit
    kit.close()
