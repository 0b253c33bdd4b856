import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from tests.failed_start import Bench, Numpy1Engine


@pytest.fixture(scope="session")
def environment():
    engine = Numpy1Engine(Resolved(Deployment()))
    engine.prepare(Console("quiet").say)
    return engine.environment_here.folder


@pytest.fixture
def bench(tmp_path, environment):
    return Bench(tmp_path, environment)
