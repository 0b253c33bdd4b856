"""What the gallery's clients say where no server answers, and of files that are not there."""

import re
import subprocess
import sys
from pathlib import Path

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


FILES = re.compile(r"--(?:graph|images|picture|texts|volume)\b")


def complaint(client, *words):
    """Return the line that a client ends with; all that it says."""
    done = subprocess.run(
        [sys.executable, client, "--url", "127.0.0.1:1", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.parent.name)
def test_a_server_that_is_away_is_one_line(client, graph):
    words = ["--graph", graph] if "--graph" in client.read_text() else []
    assert complaint(client, *words).startswith("error: [StatusCode.UNAVAILABLE] ")


@pytest.mark.parametrize(
    ("client", "flag"),
    [
        (client, flag)
        for client in CLIENTS
        for flag in sorted(set(FILES.findall(client.read_text())))
    ],
    ids=lambda each: each.parent.name if isinstance(each, Path) else each,
)
def test_a_file_that_is_not_there_is_one_line(client, flag, tmp_path):
    missing = tmp_path / "missing"
    said = complaint(client, flag, missing)
    assert said == f"error: [Errno 2] No such file or directory: '{missing}'"
