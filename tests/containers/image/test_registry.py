"""A base that comes from a registry."""

import docker
import pytest

from deploy.artefacts.image import BaseImage, ensure_base
from deploy.host.errors import BuildError
from tests.environments import ignore


def test_a_base_is_given_by_name_and_by_digest(engine, ingredients, registry):
    name = f"{registry}/debian:bookworm-slim"
    engine.images.get(ingredients.base.reference).tag(name)
    for message in engine.images.push(name, stream=True, decode=True):
        assert "error" not in message
    engine.images.remove(name)
    try:
        found = _base(engine, name, None)
        assert (found.reference, found.name) == (name, name)
        pinned = _base(engine, name, found.digest)
        assert pinned.reference == f"{registry}/debian@{found.digest}"
        assert pinned.digest == found.digest
        with pytest.raises(BuildError, match="cannot pull"):
            _base(engine, name, "sha256:" + "0" * 64)
    finally:
        engine.images.remove(name, force=True)


def _base(engine: docker.DockerClient, name: str, digest: str | None) -> BaseImage:
    return ensure_base(engine, name=name, digest=digest, say=ignore)
