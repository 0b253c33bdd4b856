"""What all of these tests have."""

import pytest


@pytest.fixture(autouse=True)
def _home(home):
    """Nothing of the user's is read or written."""
