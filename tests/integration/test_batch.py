"""``numlkit infer --engine slurm`` on a real Slurm, whose jobs ask a real Triton."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from deploy.host.paths import CHECKOUT
from tests.inputs import EVENTS
from tests.kit import NUMLKIT, SOON_S, until
from tests.programs import run_program
from tests.slurm import slurm

pytestmark = pytest.mark.alone  # Slurm's clocks do not wait for a busy host


@pytest.fixture(scope="module")
def pool(kit, tmp_path_factory):
    """What the commands of a Slurm and of the kit need."""
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**kit.variables, **variables}


@pytest.fixture(scope="module")
def url(kit):
    ports = kit.up("batch", "--models", "nugraph3")["ports"]
    yield f"grpc://127.0.0.1:{ports['grpc']}"
    kit.end("batch")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    return [shutil.copy(EVENTS, folder / f"{n}.h5") for n in "abc"]


def infer(pool, files, into, *flags):
    words = [NUMLKIT, "infer", *map(str, files), "--into", str(into), *flags]
    return subprocess.Popen(
        words, env=pool, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def jobs(pool, into, field="%F"):
    """Return Slurm's numbers of the jobs that label into a folder, active or not, or a field."""
    names = ",".join(path.name for path in (into / "batch").glob("numl-*"))
    words = ["squeue", "--noheader", "--states=all", f"--name={names}", f"--format={field}"]
    return run_program(words, env=pool, check=True).stdout.split()


def records(into):
    """Return the records of a folder, without what is of one writing of a file."""
    found = {path.name: json.loads(path.read_text()) for path in into.glob("*.json")}
    return {name: {**record, "results": ""} for name, record in found.items()}


def tasks_of(into):
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(f"@{into}/batch/") for word in process.info["cmdline"] or ())
    ]


@pytest.fixture
def closed(pool):
    """A Slurm that starts no job; yields what has it start them."""

    def state(to):
        words = ["scontrol", "update", "PartitionName=all", f"State={to}"]
        run_program(words, env=pool, check=True)

    state("DOWN")
    yield lambda: state("UP")
    state("UP")


def test_a_task_that_is_killed_is_run_again_and_results_are_those_of_a_run_without_jobs(
    pool, url, files, tmp_path
):
    alone = infer(pool, files, tmp_path / "alone", "--url", url)
    into = tmp_path / "labels"
    command = infer(pool, files, into, "--url", url, "--engine", "slurm", "--jobs", "2")
    until(lambda: len(tasks_of(into)) > 0, "a task runs")
    tasks_of(into)[0].kill()
    said, told = command.communicate(timeout=SOON_S)
    assert command.returncode == 0, told
    assert said == f"3 of 3 files done in {into}, 0 of them before; 15 events, 0 refused\n"
    assert ": Slurm says FAILED" in told
    assert "again: " in told
    assert alone.wait(SOON_S) == 0
    assert records(into) == records(tmp_path / "alone")
    assert {path.name for path in into.iterdir()} == {
        path.name for path in (tmp_path / "alone").iterdir()
    }
    for name in ("a.h5", "b.h5", "c.h5"):
        with h5py.File(into / name) as one, h5py.File(tmp_path / "alone" / name) as other:
            for column, values in one["hit_table"].items():
                assert np.array_equal(values[:], other["hit_table"][column][:])


def test_the_command_goes_on_with_the_jobs_that_one_which_was_killed_has_left(
    pool, url, files, closed, tmp_path
):
    into = tmp_path / "labels"
    flags = ("--url", url, "--engine", "slurm")
    first = infer(pool, files, into, *flags)
    until(lambda: (into / "batch/run.json").exists() and jobs(pool, into) != [], "submitted")
    first.kill()
    first.communicate()
    second = infer(pool, files, into, *flags)
    assert second.stderr.readline().startswith("going on with job numl-")
    assert len(set(jobs(pool, into))) == 1
    third = infer(pool, files, into, *flags)
    assert "another command is at work" in third.communicate(timeout=SOON_S)[1]
    closed()
    said, told = second.communicate(timeout=SOON_S)
    assert second.returncode == 0, told
    assert said.startswith("3 of 3 files done")
    assert told == ""  # nothing was submitted again


def test_ctrl_c_cancels_the_jobs(pool, url, files, closed, tmp_path):
    into = tmp_path / "labels"
    command = infer(pool, files, into, "--url", url, "--engine", "slurm")
    until(lambda: (into / "batch/run.json").exists() and jobs(pool, into) != [], "submitted")
    command.send_signal(signal.SIGINT)
    told = command.communicate(timeout=SOON_S)[1]
    assert command.returncode == 130
    assert " is cancelled\nerror: interrupted\n" in told
    assert set(jobs(pool, into, "%T")) == {"CANCELLED"}


def test_jobs_with_servers_of_their_own_leave_none(pool, kit, files, tmp_path):
    into, damaged = tmp_path / "labels", tmp_path / "damaged.h5"
    damaged.write_text("no events")
    site = tmp_path / "site.toml"
    site.write_text('engine = "slurm"\njobs = 1\nretries = 0\n')
    flags = ("--engine", str(site), "--exec")
    command = infer(pool, [*files, damaged], into, *flags)
    said, told = command.communicate(timeout=SOON_S)
    assert command.returncode == 1, told
    assert f"left: {damaged}: not an HDF5 file\n3 of 4 files done" in said
    assert not list((kit.state / "numlkit/deployments").glob("exec-*"))


def test_dask_labels_files_as_the_page_shows(pool, url, files, tmp_path):
    pytest.importorskip("dask_jobqueue")
    [code] = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs/bulk.md").read_text(), re.S)
    code = code.replace("grpc://triton.example.org:8001", url)
    code = code.replace('memory="2GB"', 'memory="2GB", interface="lo"')
    (tmp_path / "label.py").write_text(code)
    (tmp_path / "events").mkdir()
    for file in files:
        shutil.copy(file, tmp_path / "events")
    programs = {"PATH": f"{Path(NUMLKIT).parent}:{pool['PATH']}"}
    words = [sys.executable, "label.py"]
    done = run_program(words, cwd=tmp_path, env={**pool, **programs}, timeout=SOON_S)
    assert done.returncode == 0, done.stderr
    assert set(records(tmp_path / "labels")) == {"a.json", "b.json", "c.json"}
