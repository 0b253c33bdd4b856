"""Fixtures for engines; a farm and the jobs that are submitted for it, a supervisor at work."""

from pathlib import Path

import pytest

from deploy.client.probe import SmokeResult
from deploy.engines import pulse, supervise
from deploy.engines.farm import Farm
from deploy.host.batch.jobs import BatchSystem, Job
from deploy.host.batch.settings import BatchSettings
from tests.unit.deploy.engines.supervised import Run, Stubs


@pytest.fixture(autouse=True)
def _home(home):
    """Nothing of the user's is read or written."""


@pytest.fixture
def farm():
    settings = BatchSettings(
        engine="slurm", hours=0.05, cpus=4, options=("--account=dune",),
        setup=("module load apptainer",),
    )  # fmt: skip
    farm = Farm(
        name="farm", job="numl-farm-1", settings=settings, servers=1, models=("nugraph3",),
        words=("site.toml", "--image", "a b.sif"), place=Path("/home/me/my work"),
        numlkit=Path("/opt/kit/bin/numlkit"),
    )  # fmt: skip
    farm.write()
    return farm


class Submitted(list[Job]):
    """The jobs that were submitted, after tries that met with faults."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []

    def submit(self, job: Job) -> None:
        if self.faults:
            raise self.faults.pop()
        self.append(job)


@pytest.fixture
def submitted(monkeypatch):
    jobs = Submitted()
    monkeypatch.setattr(BatchSystem, "submit", lambda _self, job: jobs.submit(job))
    return jobs


@pytest.fixture
def kept(farm):
    """A farm on HTCondor, whose nodes submit nothing."""
    settings = farm.settings.model_copy(update={"engine": "htcondor"})
    return farm.model_copy(update={"settings": settings})


@pytest.fixture
def stubs():
    stubs = Stubs()
    yield stubs
    stubs.close()


@pytest.fixture
def run(tmp_path, stubs, monkeypatch):
    def right(_probe: object, model: str, _golden: object) -> SmokeResult:
        return SmokeResult(model, ready=True, error=None, seconds=None)

    monkeypatch.setattr(supervise, "smoke", right)
    monkeypatch.setattr(supervise, "HEAL_S", 600.0)  # however busy the host is
    monkeypatch.setattr(supervise, "RETIRE_S", 0.5)
    monkeypatch.setattr(supervise, "WATCH_S", 0.02)
    monkeypatch.setattr(pulse, "INTERVAL_S", 0.05)
    run = Run(tmp_path, stubs)
    monkeypatch.setattr(supervise, "time", run.clock)
    yield run
    run.close()
