"""Which models are published; that they are verified first is shown in tests/integration."""

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError
from deploy.publishing.models import verified_models


def test_a_sites_own_models_are_refused(tmp_path):
    resolved = Resolved(Deployment(models_dir=tmp_path, models=("own",)))
    with (
        pytest.raises(DeploymentError, match="only the kit's models are published"),
        verified_models(resolved, print, with_code=False),
    ):
        pass
