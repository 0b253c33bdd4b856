"""Names of what is in a registry."""

import pytest

from deploy.artefacts.reference import Reference, parse_reference
from deploy.host.errors import DeploymentError
from deploy.publishing.destination import InRegistry, parse_destination

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("registry.example.org/lab/numl", ("registry.example.org", "lab/numl", "", "")),
        ("localhost:5000/numl:24.10", ("localhost:5000", "numl", "24.10", "")),
        ("harbor:443/a/b/c:x", ("harbor:443", "a/b/c", "x", "")),
        (f"127.0.0.1:5000/numl@{DIGEST}", ("127.0.0.1:5000", "numl", "", DIGEST)),
        ("lab/numl:1", ("docker.io", "lab/numl", "1", "")),
    ],
)
def test_a_name_is_taken_apart_and_put_together(text, parts):
    found = parse_reference(text)
    assert found == Reference(*parts)
    assert str(found).endswith(text)


@pytest.mark.parametrize(
    "text", ["", "numl:", "registry.example.org/", "registry.example.org/Lab", "a.b/c:d e", "-x/y"]
)
def test_what_names_nothing_is_refused(text):
    with pytest.raises(DeploymentError, match="is not a reference to an image in a registry"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.2:5000", True),
        ("10.0.0.1:5000", False),
        ("localhost.example.org", False),
        ("registry", False),
    ],
)
def test_only_a_registry_of_this_host_may_do_without_tls(host, here):
    assert Reference(host, "numl").loopback is here


def test_registries_are_destinations():
    image, sif = Reference("h.example.org", "numl"), Reference("h.example.org", "numl", "prod")
    assert parse_destination("docker://h.example.org/numl") == InRegistry("docker", image)
    assert parse_destination("oras://h.example.org/numl:prod") == InRegistry("oras", sif)
    assert str(InRegistry("oras", sif)) == "oras://h.example.org/numl:prod"
    with pytest.raises(DeploymentError, match="the registry assigns the digest"):
        parse_destination(f"docker://h.example.org/numl@{DIGEST}")
    with pytest.raises(DeploymentError, match="has a user or password in it") as caught:
        parse_destination("docker://user:secret@h.example.org/numl")
    assert "secret" not in caught.value.cause
