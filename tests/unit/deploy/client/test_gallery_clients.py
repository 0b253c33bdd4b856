"""The gallery's clients, where no server answers."""

import subprocess
import sys

import numpy as np
import pytest

from deploy.client.example import CLIENT
from deploy.host.paths import CHECKOUT

CLIENTS = sorted(CHECKOUT.glob(f"gallery/*/{CLIENT}"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """What gat/train.py --graph writes, of a few papers."""
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    x, test = np.zeros((8, 1433), np.float32), np.ones(8, bool)
    np.savez(path, x=x, edges=np.zeros((2, 4), np.int64), subject=np.zeros(8, int), test=test)
    return path


@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.parent.name)
def test_a_server_that_is_away_is_one_line(client, graph):
    words = ["--graph", graph] if "--graph" in client.read_text() else []
    done = subprocess.run(
        [sys.executable, client, "--url", "127.0.0.1:1", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
