"""The benchmark in its shortest form, with its own server and NuGraph's own code behind it."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from deploy.engines.leftovers import shm_prefix
from tests.kit import Kit

OF_A_CLIENT = re.compile(r"numlkit-benchmark-(\d+)-")


def _shared_memory(kit: Kit) -> set[str]:
    """Return the regions of this kit's servers, and those of clients that have ended."""
    names = [path.name for path in Path("/dev/shm").iterdir()]
    clients = {name: found[1] for name in names if (found := OF_A_CLIENT.match(name))}
    ended = {name for name, pid in clients.items() if not psutil.pid_exists(int(pid))}
    return ended | {name for name in names if name.startswith(shm_prefix(kit.folder("benchmark")))}


def test_a_quick_run_measures_every_way_and_leaves_nothing(kit, tmp_path):
    before = _shared_memory(kit)
    # PyTorch Geometric makes sources as it runs, and leaves them where temporary files go.
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kit = replace(kit, within=("env", f"TMPDIR={scratch}"))
    flags = ["--quick", "--models", "nugraph3", "--json", str(tmp_path / "run.json")]
    # One instance of each model: most of the time NuGraph's own code is imported in each.
    flags += ["--cores", str(min(os.sched_getaffinity(0)))]
    flags += ["--hits", "200", "--loaded-hits", "200", "--concurrency", "1"]
    flags += ["--protocols", "http", "shm"]  # which is gRPC, too
    done = kit.run("benchmark", *flags, "--plot", str(tmp_path / "run.png"), script=True)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["differences"] == []
    assert {entry["path"] for entry in run["in_process"]} >= {
        "reference, gradients on",
        "reference, gradients off",
        "numl_serving",
    }
    served = run["served"]
    assert {entry["server"] for entry in served} == {"ours", "today", "best"}
    assert {entry["protocol"] for entry in served} == {"http", "shm"}
    for entry in served:
        assert 0 < entry["latency"]["p50"] <= entry["latency"]["p99"]
        assert entry["events_per_second"]["median"] > 0
        # What a model does is part of what Triton sees of it, and that of what a client sees.
        # A client may have its answer before Triton notes that the request has ended: on a busy
        # host, long before.
        spent = entry["preprocess"] + entry["network"]
        assert 0 < spent < entry["execute"] < 2 * entry["latency"]["mean"]
    assert all(math.isfinite(ratio["latency"]["median"]) for ratio in run["served_ratios"])
    assert (tmp_path / "run.png").stat().st_size > 10_000
    assert not list((kit.state / "numlkit" / "deployments").glob("benchmark-*"))
    assert _shared_memory(kit) <= before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--plot", "run.doc"], 2, "run.doc does not end with any of .png, .pdf, .svg"),
        (["--json", "nowhere/run.json"], 2, "nowhere/run.json cannot be written"),
        (["--cores", "0,4096"], 2, "'0,4096' is not a subset of the cores 0"),
        (["--seconds", "0"], 2, "'0' is not a number of seconds above 0"),
        (["--file", "nowhere.h5"], 1, "error: nowhere.h5: no such file"),
        (["--models", "nugraph3,nope"], 1, "error: no model 'nope' in "),
    ],
)
def test_what_is_wrong_is_told_before_events_are_simulated(kit, flags, status, said):
    done = kit.run("benchmark", *flags, script=True)
    assert done.returncode == status
    assert said in done.stderr
    assert "simulating" not in done.stdout + done.stderr
