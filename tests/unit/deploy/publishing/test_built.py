"""Which artefacts a publish takes."""

from dataclasses import replace

import pytest

from deploy.deployment.deployment import load_deployment
from deploy.engines.resolved import Resolved
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
