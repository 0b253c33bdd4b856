"""Servers as batch jobs: what ``up`` submits, and how it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.deployment.state import DeploymentFolder
from deploy.engines.farm import Farm, await_servers, read_farm, start_farm, stop_farm
from deploy.host.batch.htcondor import HTCondor
from deploy.host.batch.jobs import BatchSystem, Job, Task
from deploy.host.batch.slurm import Slurm
from deploy.host.errors import DeploymentError, KitError
from deploy.host.files import unless_locked


@pytest.fixture
def nothing_runs(monkeypatch):
    for system in (Slurm, HTCondor):
        monkeypatch.setattr(system, "listed", lambda *_: [])


def locked(farm: Farm) -> bool:
    """Return whether a command that starts or ends a farm keeps others from it."""
    with unless_locked(DeploymentFolder(farm.name).launch_lock) as free:
        return not free


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ({}, ["numl-farm-1-keeper", "numl-farm-1"]),
        ({"numl-farm-1": [(0, Task(True))]}, ["numl-farm-1-keeper"]),
        ({"numl-farm-1-keeper": [(0, Task(True))]}, ["numl-farm-1"]),
    ],
)
def test_a_keeper_that_is_missing_is_submitted_before_servers(
    kept, monkeypatch, submitted, listed, names
):
    kept.write()
    monkeypatch.setattr(HTCondor, "listed", lambda _self, name: listed.get(name, []))
    start_farm(kept)
    assert [job.name for job in submitted] == names


@pytest.mark.parametrize("answers", [True, False])
def test_of_an_up_whose_servers_are_refused_no_keeper_is_left_without_its_farm(
    kept, nothing_runs, monkeypatch, answers
):
    cancelled = []

    def submit(_self: object, job: Job) -> None:
        if job.name == kept.job:
            raise KitError("condor_submit failed: unknown command")

    def cancel(_self: object, name: str) -> None:
        if not answers:
            raise KitError("condor_rm failed: no schedd")
        cancelled.append(name)

    new = kept.model_copy(update={"name": "new"})
    monkeypatch.setattr(BatchSystem, "submit", submit)
    monkeypatch.setattr(HTCondor, "cancel", cancel)
    with pytest.raises(KitError, match="condor_submit failed"):
        start_farm(new)
    if answers:
        assert (cancelled, new.folder.exists()) == (["numl-farm-1-keeper"], False)
    else:
        assert read_farm("new") == new  # for down


@pytest.mark.parametrize(
    ("tasks", "missing"),
    [
        ([], 3),
        ([(0, "RUNNING", ""), (1, "PENDING", ""), (2, "FAILED", "")], 1),
        ([(0, "RUNNING", "")] * 3, 0),  # each renewed by a job of its own
        ([(0, "RUNNING", "")] * 3 + [(0, "PENDING", "")], 0),
    ],
)
def test_the_servers_that_are_missing_are_submitted(farm, monkeypatch, submitted, tasks, missing):
    wanted = farm.model_copy(update={"servers": 3})
    wanted.write()
    monkeypatch.setattr(Slurm, "_tasks", lambda _self, _name: tasks)
    assert start_farm(wanted.model_copy(update={"job": "numl-farm-2"})) == wanted
    assert [job.tasks for job in submitted] == [missing] * (missing > 0)


@pytest.mark.parametrize(("tasks", "left"), [([], 0), ([(0, Task(True))], 1)])
def test_servers_whose_jobs_have_all_ended_are_not_taken_for_those_that_up_starts(
    farm, monkeypatch, submitted, tasks, left
):
    farm.registry.enter("grpc://dead:8001")  # killed, with no time to leave
    monkeypatch.setattr(Slurm, "listed", lambda *_: tasks)
    start_farm(farm)
    assert len(farm.registry.entries()) == left


def test_up_waits_for_servers_also_while_the_batch_system_is_silent(farm, monkeypatch):
    states: list[list[tuple[int, Task]] | None] = [[(0, Task(False))], None, [(0, Task(True))]]

    def listed(_self: object, _name: str) -> list[tuple[int, Task]]:
        state = states.pop(0)
        if not states:
            farm.registry.enter("grpc://node:8001")
        if state is None:
            raise KitError("squeue failed: Unable to contact slurm controller")
        return state

    monkeypatch.setattr(Slurm, "listed", listed)
    monkeypatch.setattr("deploy.engines.farm.time.sleep", lambda _: None)
    assert await_servers(farm, seconds=60, say=lambda _: None) == 1
    states += [None]
    with pytest.raises(KitError, match="Unable to contact"):
        await_servers(farm, seconds=-1, say=lambda _: None)


@pytest.mark.parametrize("update", [{"words": ("\udce9.toml",)}, {"place": Path("/\udce9")}])
def test_a_farm_of_a_path_that_is_not_utf_8_is_refused_and_leaves_nothing(
    farm, nothing_runs, submitted, update
):
    other = farm.model_copy(update={"name": "other", **update})
    with pytest.raises(DeploymentError, match="not UTF-8"):
        start_farm(other)
    assert (submitted, other.folder.exists()) == ([], False)


def test_commands_that_start_the_same_farm_take_turns(farm, nothing_runs, monkeypatch):
    held: list[bool] = []
    monkeypatch.setattr(BatchSystem, "submit", lambda *_: held.append(locked(farm)))
    assert start_farm(farm) == farm
    assert held == [True]


def test_an_up_of_the_same_name_waits_until_down_has_ended_all_jobs(farm, monkeypatch):
    held: list[bool] = []
    monkeypatch.setattr(Slurm, "active", lambda *_: held.append(locked(farm)) or {})
    farm.write()
    stop_farm(farm)
    assert (set(held), farm.folder.exists()) == ({True}, False)
    newer = farm.model_copy(update={"job": "newer"})
    newer.write()
    stop_farm(farm)  # a second down, which has waited for the first
    assert read_farm(farm.name) == newer


def test_the_same_up_after_a_down_that_was_killed_has_the_farm_go_on(farm, monkeypatch, submitted):
    (farm.folder / "farm.json").rename(farm.folder / "ending.json")
    monkeypatch.setattr(Slurm, "listed", lambda *_: [(0, Task(False))])
    assert start_farm(farm.model_copy(update={"job": "numl-farm-2"})) == farm
    assert (farm.goes_on, submitted) == (True, [])
