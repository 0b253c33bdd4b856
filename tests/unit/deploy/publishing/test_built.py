"""Which artefacts and models a publish takes; those are verified first in tests/integration."""

from dataclasses import replace

import pytest

from deploy.deployment.deployment import Deployment, load_deployment
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError
from deploy.publishing.models import verified_models
from deploy.publishing.place import Order
from deploy.triton.release import find_release


@pytest.mark.parametrize(
    ("named", "release"), [("26.07", "26.07"), ("registry.example/triton:26.07-py3", "2.71.0")]
)
def test_artefacts_are_those_of_the_triton_that_is_named(monkeypatch, named, release):
    fetched = []

    def find_triton(name, _say):
        fetched.append(name)
        return replace(find_release("24.10"), release="2.71.0", server="2.71.0")

    monkeypatch.setattr("deploy.artefacts.triton.find_triton", find_triton)
    order = Order(Resolved(load_deployment(None, {"triton": named})))
    assert order.triton == release
    assert bool(fetched) == (named != release)


def test_a_sites_own_models_are_refused(tmp_path):
    resolved = Resolved(Deployment(models_dir=tmp_path, models=("own",)))
    with (
        pytest.raises(DeploymentError, match="only the kit's models are published"),
        verified_models(resolved, print, with_code=False),
    ):
        pass
