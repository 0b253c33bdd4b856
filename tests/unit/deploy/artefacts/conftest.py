"""What several of these tests ask."""

from __future__ import annotations

import threading

import pytest

from deploy.artefacts import layers
from deploy.artefacts.keys import read_signer
from tests.cosign import Cosign
from tests.releases import Blob
from tests.unit.deploy.artefacts.played import Registry


@pytest.fixture(autouse=True)
def _home(home):
    """Nothing of the user's is read or written."""


@pytest.fixture
def serve(monkeypatch):
    """Starts registries that serve an image of some layers."""
    monkeypatch.setattr(layers, "_PAUSE_S", 0.0)
    started: list[Registry] = []

    def start(*content: Blob, host: str = "127.0.0.1") -> Registry:
        started.append(Registry(list(content), host))
        threading.Thread(target=started[-1].serve_forever, args=(0.02,), daemon=True).start()
        return started[-1]

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


@pytest.fixture
def cosign(tmp_path, monkeypatch):
    return Cosign.install(tmp_path / "bin", monkeypatch)


@pytest.fixture
def signer(cosign):
    return read_signer(cosign.key)
