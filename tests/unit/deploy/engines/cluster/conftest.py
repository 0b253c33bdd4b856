"""The terminal of the tests of engine kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.engines import rollout
from tests.api_server import Cluster, serve, write_kubeconfig
from tests.unit.deploy.engines.cluster.terminal import Terminal


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(rollout, "_POLL_S", 0.01)
    monkeypatch.setattr(rollout, "PATIENCE_S", 0.1)
    cluster = Cluster()
    with serve(cluster) as url:
        file = tmp_path / "kubeconfig"
        write_kubeconfig(file, url)
        # Read from the environment when it is imported, once for all tests.
        where = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(where, str(file))
        yield Terminal(cluster, tmp_path, capsys)
