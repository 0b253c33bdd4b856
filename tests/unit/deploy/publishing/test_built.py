"""Which artefacts and models a publish takes; those are verified first in tests/integration."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from docker.errors import APIError

from deploy.deployment.deployment import Deployment, load_deployment
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError, PublishError
from deploy.publishing.built import check_image
from deploy.publishing.models import verified_models
from deploy.publishing.place import Order
from deploy.triton.release import find_release
from tests.artefacts import artefact


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


@pytest.mark.parametrize(
    ("end", "raised", "said"),
    [
        (KeyboardInterrupt, KeyboardInterrupt, None),
        (APIError("no such device"), PublishError, "n:t: its own check fails: no such device"),
        ({"StatusCode": 1}, PublishError, "n:t: its own check fails: nugraph2 is wrong"),
    ],
)
def test_the_check_of_an_image_leaves_no_container_however_it_ends(end, raised, said):
    client = Mock()
    container = client.containers.create.return_value
    container.wait.side_effect = [end]
    container.logs.return_value = b"error: nugraph2 is wrong\n"
    with pytest.raises(raised, match=said):
        check_image(client, artefact("image", "n:t", "sha256:0"), print)
    assert client.containers.create.call_args.args == ("sha256:0",)  # not what has its name now
    container.remove.assert_called_once_with(force=True, v=True)
