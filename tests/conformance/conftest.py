"""One suite for every engine: what a deployment does must not depend on what started it.

pytest tests/conformance                             without a container
pytest tests/conformance --engines docker,apptainer  needs what numlkit build makes
pytest tests/conformance --triton PATH               on another Triton, see tests/releases.py
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT, cache_folder
from tests.kit import Kit
from tests.views import only, python_folders, view


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engines", default="local", help="comma separated")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        engines = metafunc.config.getoption("--engines").split(",")
        metafunc.parametrize("engine", engines, scope="session")


@pytest.fixture(scope="session")
def kit(engine, tmp_path_factory, pytestconfig):
    state, triton = tmp_path_factory.mktemp("state"), pytestconfig.getoption("--triton")
    kit = Kit(state, engine, triton=triton)
    yield kit
    kit.close()


@pytest.fixture
def full_tmp(kit):
    """The kit on a host in whose /tmp not a byte can be written."""
    if os.geteuid() != 0:
        pytest.skip("only root can fill /tmp for the kit alone")
    # The tests have their files beside the state folder.
    keep = [kit.state.parent, CHECKOUT, cache_folder(), *python_folders()]
    fill = "{ cat /dev/zero >/tmp/full 2>/dev/null || true; }"
    with view(*only(Path("/tmp"), keep, "size=1m,mode=1777"), fill) as full:
        with pytest.raises(OSError, match="No space left"):
            (full.path(Path("/tmp")) / "more").write_bytes(bytes(10_000))
        yield replace(kit, within=full.within)
