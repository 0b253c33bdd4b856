from __future__ import annotations

from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.local import LocalEngine
from deploy.engines.resolved import Resolved
from deploy.environment.environment import plan_environment
from deploy.host.console import Console
from tests.failed_start import Bench


@pytest.fixture(scope="session")
def environment() -> Path:
    LocalEngine(Resolved(Deployment())).prepare(Console("quiet").say)
    return plan_environment("serving").folder


@pytest.fixture
def bench(tmp_path: Path, environment: Path) -> Bench:
    return Bench(tmp_path, environment)
