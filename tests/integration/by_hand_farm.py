"""``numlkit up --engine slurm`` on a real Slurm: servers that are renewed while clients ask.

.venv/bin/python -m pytest tests/integration/by_hand_farm.py

With NUML_LABEL naming the C++ client's program, which clients/cpp/check builds as
build/cpp/17/numl-label, it asks beside the Python client.

Not in CI: its jobs end by the clock, which does not wait for a busy host.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from deploy.client.registry import Registry
from numlkit import Client, Labelled
from tests.inputs import EVENTS
from tests.kit import NUMLKIT
from tests.slurm import slurm

LIMIT_S = 20
"""For each job: it is renewed at half of it."""
ROUNDS = 400
"""Of the file of events, asked by the C++ client: longer than a server is there."""


@contextmanager
def cpp_client(registry: Path) -> Iterator[subprocess.Popen[str] | None]:
    """Let the C++ client ask as well, if there is one."""
    program = os.environ.get("NUML_LABEL")
    if program is None:
        yield None
        return
    words = [program, "--servers", registry, "--json", "--in-flight", "1", "--repeat", str(ROUNDS)]
    with subprocess.Popen([*words, EVENTS], stdout=subprocess.PIPE, text=True) as asking:
        yield asking


@pytest.fixture
def numlkit(kit, tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    (tmp_path / "node.toml").write_text(
        'engine = "local"\nmodels = ["nugraph3"]\nlisten = "0.0.0.0"\nname = "farm"\n'
    )
    (tmp_path / "slurm.toml").write_text(f'engine = "slurm"\nhours = {LIMIT_S / 3600}\n')
    with slurm(folder) as variables:

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [NUMLKIT, *words], env={**kit.variables, **variables}, cwd=tmp_path,
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        yield run
        run("down", "--name", "farm")


def test_a_server_is_renewed_without_losing_a_request_and_taken_down(numlkit, kit):
    started = numlkit("up", "node.toml", "--engine", "slurm.toml", "--json")
    assert started.returncode == 0, started.stdout + started.stderr
    told = json.loads(started.stdout)
    [first] = told["servers"]
    registry = Path(told["registry"])
    with cpp_client(registry) as cpp, Client(servers=registry, concurrency=2) as client:
        events = list(client.read(EVENTS))
        replaced = 0
        for event, outcome in zip(cycle(events), client.label_all(cycle(events)), strict=False):
            assert isinstance(outcome, Labelled), outcome
            assert outcome.event_id == event.event_id
            named = {entry.url for entry in Registry(registry).entries()}
            replaced += first not in named
            if replaced == 500:
                break
        assert len(client.endpoints) >= 2  # a slow host has had it renewed once more
        if cpp is not None:
            assert cpp.poll() is None, "it has asked since before the renewal"
            answered = json.loads(cpp.communicate(timeout=300)[0])
            assert (answered["events"], answered["failed"]) == (ROUNDS * len(events), 0)
    status = numlkit("status", "--name", "farm", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    smoke = numlkit("smoke", "--servers", str(registry), "--models", "nugraph3")
    assert smoke.returncode == 0, smoke.stdout + smoke.stderr
    again = numlkit("up", "node.toml", "--engine", "slurm.toml", "--json")
    assert len(json.loads(again.stdout)["servers"]) == 1
    down = numlkit("down", "--name", "farm")
    assert down.returncode == 0, down.stderr
    assert not registry.exists()
    assert not list((kit.state / "numlkit/deployments").glob("exec-*"))
