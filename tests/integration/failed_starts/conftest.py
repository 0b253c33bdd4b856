from __future__ import annotations

from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from tests.failed_start import Bench, Numpy1Engine


@pytest.fixture(scope="session")
def environment() -> Path:
    engine = Numpy1Engine(Resolved(Deployment()))
    engine.prepare(Console("quiet").say)
    return engine.environment_here.folder


@pytest.fixture
def bench(tmp_path: Path, environment: Path) -> Bench:
    return Bench(tmp_path, environment)
