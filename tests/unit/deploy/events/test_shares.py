"""Batch jobs that label shares of files: what is submitted again, and what is told."""

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy.events import shares
from deploy.events.bulk import Record
from deploy.events.shares import Campaign, preview, run_campaign
from deploy.host.batch.jobs import SCRIPT, BatchSystem, Task
from deploy.host.batch.settings import BatchSettings
from deploy.host.batch.slurm import Slurm
from deploy.host.errors import ClientError, Ended, KitError
from tests.unit.deploy.events.written import full_disk


class Fake(Slurm):
    """Does the work of a job when it is submitted; ``fails`` says what goes wrong, by file."""

    def __init__(self, into: Path, **fails: str) -> None:
        self.into, self.fails = into, fails
        self.submitted: list[list[list[str]]] = []
        self.states: list[dict[int, Task]] = []
        self.weights = "a"

    def submit(self, job):
        lists = [(job.folder / f"{n}.txt").read_text().split() for n in range(job.tasks)]
        self.submitted.append([[Path(path).name for path in each] for each in lists])
        for number, paths in enumerate(lists):
            for path in map(Path, paths):
                if path.name.removesuffix(".h5") in self.fails:
                    job.log(number).write_text(self.fails[path.stem].format(path=path))
                    break
                self.label(path)

    def label(self, path):
        if (self.into / path.name).exists():
            return
        facts = path.stat()
        record = Record(
            path.name, facts.st_size, facts.st_mtime_ns, "", "m", self.weights, "", 5, 1, 9, ""
        )
        (self.into / path.name).touch()
        (self.into / f"{path.stem}.json").write_text(json.dumps(asdict(record)))

    def active(self, name):
        return self.states.pop(0) if self.states else {}

    def ended(self, name):
        return {0: "Slurm says TIMEOUT"}

    def cancel(self, name, task=None):
        pass


@pytest.fixture
def farm(tmp_path, monkeypatch):
    """Make a campaign of files a.h5 to e.h5 and its batch system."""
    monkeypatch.setattr("deploy.host.batch.jobs._FIRST_PAUSE_S", 0.0)
    (tmp_path / "labels").mkdir()
    files = [tmp_path / f"{name}.h5" for name in "abcde"]
    for path in files:
        path.touch()

    def make(jobs=2, **fails):
        system = Fake(tmp_path / "labels", **fails)
        monkeypatch.setattr(shares, "SYSTEMS", {"slurm": lambda: system})
        settings = BatchSettings(engine="slurm", jobs=jobs)
        return Campaign(tuple(files), tmp_path / "labels", ("label",), settings, "m"), system

    return make


def test_files_are_labelled_in_equal_shares_once(farm):
    campaign, system = farm()
    state = run_campaign(campaign)
    assert (state.done, state.skipped, state.events, state.failed) == (5, 0, 25, 5)
    assert system.submitted == [[["a.h5", "c.h5", "e.h5"], ["b.h5", "d.h5"]]]
    assert {path.suffix for path in campaign.folder.iterdir()} == {".h5", ".json"}
    state = run_campaign(campaign)
    assert (state.done, state.skipped, state.events) == (5, 5, 0)
    assert preview(campaign) == {}
    with pytest.raises(ClientError, match=r"has results of m: a\.h5"):
        run_campaign(replace(campaign, model="another"))
    assert len(system.submitted) == 1


def test_what_is_left_is_submitted_again_twice_and_then_told_with_its_cause(farm):
    campaign, system = farm(c="error: the server did not start\n  try: this\n", d="")
    said: list[str] = []
    state = run_campaign(campaign, say=said.append)
    # Each has a file that is done first: tasks see from it whether their weights are the same.
    assert system.submitted[1:] == [
        [["a.h5", "e.h5", "c.h5"], ["a.h5", "d.h5"]],
        [["a.h5", "c.h5"], ["a.h5", "d.h5"]],
    ]
    logs = sorted(campaign.folder.glob("batch/*/0.log"))
    assert [Path(failure.source).name for failure in state.left] == ["c.h5", "d.h5"]
    first, second = (failure.reason for failure in state.left)
    assert first.startswith("the server did not start (")
    assert first[first.index("(") + 1 : -1] in map(str, logs)
    assert second.startswith("no reason known (")
    assert any(line.startswith("task 0 of numl-") for line in said)


@pytest.mark.parametrize(
    ("log", "stuck", "reason"),
    [
        ("left: {path}: not an HDF5 file\n1 of 2 files done\n", "", "not an HDF5 file"),
        ("Killed\n", "", "Slurm says TIMEOUT: Killed ("),
        ("error: interrupted\n  try: again\n", "", "Slurm says TIMEOUT: interrupted ("),
        ("", "cannot open the log", "cannot open the log ("),
    ],
)
def test_the_cause_is_the_task_s_own_word_or_the_batch_system_s(farm, log, stuck, reason):
    campaign, system = farm(jobs=1, a=log)
    system.states = [{0: Task(False, stuck)}, {}] * 3
    assert run_campaign(campaign).left[0].reason.startswith(reason)


def test_what_is_left_is_submitted_again_also_if_the_batch_system_does_not_say_why(farm):
    campaign, system = farm(jobs=1, e="Killed\n")
    system.ended = Mock(side_effect=KitError("condor_history failed: no history"))
    assert run_campaign(campaign).left[0].reason.startswith("Killed (")
    assert len(system.submitted) == 3


@pytest.mark.parametrize(
    ("comes", "cancelled"),
    [(KeyboardInterrupt(), 1), (Ended(signal.SIGTERM), 0), (Ended(signal.SIGHUP), 0)],
)
def test_only_ctrl_c_cancels_the_jobs_and_who_logs_out_finds_them_again(farm, comes, cancelled):
    campaign, system = farm()
    system.active, system.cancel = Mock(side_effect=comes), Mock()
    with pytest.raises(type(comes)):
        run_campaign(campaign)
    assert system.cancel.call_count == cancelled


def test_a_second_ctrl_c_leaves_jobs_whose_name_was_told(farm):
    campaign, system = farm()
    said: list[str] = []
    system.active = system.cancel = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run_campaign(campaign, say=said.append)
    assert said[-1] == f"cancelling job {said[0].split()[-1]}"


def test_a_disk_that_is_full_when_shares_are_written_is_named(farm, monkeypatch):
    campaign, _ = farm()
    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        run_campaign(campaign)
    assert caught.value.filename == str(campaign.folder)


def test_names_of_files_and_of_the_folder_need_not_be_utf_8(tmp_path, farm):
    path, folder = (tmp_path / os.fsdecode(name) for name in (b"\xe9.h5", b"\xe9"))
    path.touch()
    campaign, system = farm()
    said: list[bytes] = []

    def submit(job):
        BatchSystem.submit(system, job)
        said.extend((job.folder / name).read_bytes() for name in (SCRIPT, "0.txt"))

    system.submit, system._ask = submit, lambda *_, **__: ""
    run_campaign(replace(campaign, files=(path,), folder=folder))
    assert b"\xe9/batch/" in said[0]
    assert said[1] == os.fsencode(path) + b"\n"


@pytest.mark.parametrize("act", [preview, run_campaign])
def test_a_name_with_a_line_break_is_refused_before_anything_is_submitted(farm, act, tmp_path):
    campaign, system = farm()
    path = tmp_path / "b\nc.h5"
    path.touch()
    with pytest.raises(ClientError, match="line break"):
        act(replace(campaign, files=(path,)))
    assert system.submitted == []


def test_the_job_of_a_command_that_was_killed_is_waited_for(farm):
    campaign, system = farm()
    batch = campaign.folder / "batch"
    batch.mkdir()
    (batch / "run.json").write_text('{"engine": "slurm", "name": "numl-1"}')
    system.states = [{0: Task(True)}, {0: Task(True)}]
    said: list[str] = []
    for path in campaign.files[:4]:
        system.label(path)
    assert run_campaign(campaign, say=said.append).done == 5
    assert said[0] == "going on with job numl-1"
    assert system.submitted == [[["a.h5", "e.h5"]]]


def test_results_of_several_weights_are_no_success(farm):
    campaign, system = farm()
    system.label(campaign.files[0])
    system.weights = "b"
    with pytest.raises(ClientError, match="several models or weights"):
        run_campaign(campaign)


def test_a_job_that_the_batch_system_refuses_is_told(farm):
    campaign, system = farm()
    system.submit = Mock(side_effect=KitError("sbatch failed: invalid partition: cpu"))
    with pytest.raises(KitError, match="invalid partition"):
        run_campaign(campaign)
