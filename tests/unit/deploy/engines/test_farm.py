"""Servers as batch jobs: what is submitted, and when a server is renewed and leaves."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from deploy.client.registry import Entry, Registry
from deploy.commands.down import main as down
from deploy.commands.status import main as status
from deploy.commands.up import main as up
from deploy.engines import farm_keeper, farm_server
from deploy.engines.farm import Farm, known_farms, read_farm, start_farm
from deploy.engines.farm_keeper import keep
from deploy.engines.farm_server import Times, attend, reachable
from deploy.host.batch.htcondor import HTCondor
from deploy.host.batch.jobs import Job, Resources, Task
from deploy.host.batch.settings import BatchSettings
from deploy.host.batch.slurm import Slurm
from deploy.host.errors import KitError, LaunchError
from tests.certificates import Authority
from tests.programs import run_program, write_program
from tests.unit.deploy.client.servers import grpc_server
from tests.unit.deploy.commands.running import ENDING

EXEC = (
    "exec /opt/kit/bin/numlkit exec --quiet site.toml --image 'a b.sif' -- /opt/kit/bin/python "
    '-I -m deploy.engines.farm_server farm numl-farm-1 "$BEGUN"'
)


def test_a_job_starts_a_server_and_what_enters_it(farm):
    setup = ("BEGUN=$(date +%s)", "module load apptainer")
    needs = farm.settings.model_copy(update={"setup": setup})
    enter, folder = "cd '/home/me/my work'", farm.folder / "jobs"
    first, next_ = f'{EXEC} up-1-"$TASK"', f'{EXEC} renewal-1-"$TASK" 0badcafe'
    assert farm.to_submit(3, "up-1") == Job(farm.job, 3, (enter, first), folder / "up-1", needs)
    renewal = Job(farm.job, 1, (enter, next_), folder / "renewal-1", needs)
    assert farm.to_submit(1, "renewal-1", "0badcafe") == renewal
    assert (read_farm("farm"), known_farms()) == (farm, ("farm",))


def test_words_reach_the_nodes_as_they_are_whatever_their_shell_is(farm, tmp_path):
    words = ("no-break\u00a0space.toml", "line\nbreak", "it's $HOME")
    program = write_program(tmp_path / "numlkit", """printf '<%s>' "$@" """)
    job = farm.model_copy(update={"words": words, "numlkit": program, "place": tmp_path})
    script = "\n".join(job.to_submit(1, "up-1").script)
    said = run_program(["/bin/sh", "-c", script]).stdout
    assert said.startswith("".join(f"<{word}>" for word in ("exec", "--quiet", *words, "--")))


def test_a_job_s_time_begins_before_its_lines_of_setup(farm, tmp_path):
    program = write_program(tmp_path / "numlkit", """printf '%s\\n' "$@" """)
    settings = farm.settings.model_copy(update={"setup": ("date() { echo late; }",)})
    here = farm.model_copy(
        update={"settings": settings, "numlkit": program, "place": tmp_path, "words": ()}
    )
    script = Slurm().render(here.to_submit(1, "up-1"))["job.sh"]
    assert run_program(["/bin/sh", "-c", script]).stdout.splitlines()[-2].isdecimal()


def test_modules_in_the_folder_where_up_was_typed_are_not_run_on_the_nodes(farm, tmp_path):
    place, programs = tmp_path / "place", tmp_path / "bin"
    place.mkdir()
    for name in ("deploy", "secrets"):
        (place / f"{name}.py").write_text("raise SystemExit('a file of the user is run')\n")
    # It stands for one whose server is ready, and runs what comes after --.
    words = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    write_program(programs / "numlkit", words)
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    (farm.folder / "farm.json").unlink()
    settings = BatchSettings(engine="htcondor", hours=2)
    update = {"place": place, "numlkit": programs / "numlkit", "settings": settings}
    here = farm.model_copy(update=update)
    for job in (here.to_submit(1, "up-1"), here.keeper()):
        script = HTCondor().render(job)["job.sh"]
        variables = {**os.environ, "PYTHONPATH": str(place)}
        done = run_program(["sh", "-c", script], cwd=place, env=variables)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.endswith(" farm farm has ended\n")


def test_a_server_is_renewed_at_half_its_time_and_leaves_before_its_end():
    assert Times.of(24) == Times(renews=12 * 3600, leaves=24 * 3600 - 150, drains=90)
    assert Times.of(0.1) == Times(renews=180, leaves=306, drains=18)
    assert Times.of(None) == Times(None, None, 0)


def fail(*_: object, **__: object) -> None:
    """Stand for a call that meets with a file system in trouble."""
    raise OSError(errno.EIO, "Input/output error")


class Clock:
    """Time passes while someone sleeps; something happens at some times."""

    def __init__(self, **events):
        self.now, self.events = 0.0, {float(at[1:]): event for at, event in events.items()}

    def sleep(self, seconds):
        self.now += seconds
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()


def attended(farm, clock):
    entry = farm.registry.enter("grpc://node:8001")
    attend(farm, entry, lambda: clock.now, clock.sleep)
    return entry


def test_a_server_leaves_when_the_one_that_replaces_it_is_there(farm, submitted):
    def replace():
        [old] = farm.registry.entries()
        farm.registry.enter("grpc://other:8001", replaces=old.name)

    clock = Clock(t100=replace)
    entry = attended(farm, clock)
    [job] = submitted
    assert job.script[-1].endswith(f" {entry.name}")
    assert farm.registry.urls() == ("grpc://other:8001",)
    assert 100 + 9 <= clock.now < 100 + 14


def test_a_renewal_that_fails_is_tried_again(farm, submitted):
    submitted.faults = [KitError("sbatch failed: busy")] * 2
    attended(farm, Clock())
    assert (len(submitted), submitted.faults) == (1, [])


@pytest.fixture
def on_node(monkeypatch):
    """A job's process beside its server."""
    monkeypatch.setenv("NUML_GRPC_URL", "grpc://127.0.0.1:9001")
    monkeypatch.setattr(farm_server.socket, "gethostname", lambda: "node7")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def entered(on_node, monkeypatch):
    """The entries of servers whose jobs have run: each was the only one, and has left."""
    found: list[Entry] = []

    def attend(farm: Farm, entry: Entry, *_: object) -> None:
        assert farm.registry.entries() == [entry]
        found.append(entry)

    monkeypatch.setattr(farm_server, "attend", attend)
    return found


def run_job(farm: Farm, task: str, *replaces: str, job: str = "numl-farm-1") -> None:
    assert farm_server.main([farm.name, job, "0", task, *replaces]) == 0
    assert farm.registry.entries() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_it_leaves_also_if_it_is_told_to_end_where_something_is_finalized(
    farm, on_node, monkeypatch
):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def stay(_registry: Registry, entry: Entry) -> None:
        stays.append(entry)
        assert len(stays) < 3
        Finalized()

    stays: list[Entry] = []
    monkeypatch.setattr(Registry, "stay", stay)
    with pytest.raises(SystemExit, match="0"):
        farm_server.main([farm.name, farm.job, str(time.time()), "up-1-0"])
    assert (len(stays), farm.registry.entries()) == (1, [])


@pytest.mark.parametrize("order", ["abab", "baba"])
def test_of_two_jobs_that_replace_one_a_single_one_stays_however_late_the_other_starts(
    farm, entered, order
):
    for job in order:  # the first one begins again, as after a requeue
        run_job(farm, f"renewal-0badcafe-{job}-0", "0badcafe")
    assert (len(entered), len(set(entered))) == (2, 1)


def test_a_replacement_that_cannot_ask_whether_there_is_another_serves(farm, entered):
    (farm.folder / "replaced").rmdir()
    run_job(farm, "renewal-0badcafe-1-0", "0badcafe")
    assert len(entered) == 1


@pytest.mark.parametrize("fails", [None, "renew", "entries", "stay", "leave"])
def test_a_server_that_is_not_replaced_stays_until_its_time_is_over_whatever_fails(
    farm, monkeypatch, submitted, fails
):
    clock = Clock()
    with monkeypatch.context() as patch:
        if fails is not None:
            patch.setattr(Farm if fails == "renew" else Registry, fails, fail)
        attended(farm, clock)
    assert clock.now == pytest.approx(180 - 18, abs=5)
    assert len(submitted) == (fails != "renew")
    assert len(farm.registry.entries()) == (fails == "leave")


def test_a_farm_goes_on_if_the_file_system_does_not_say(farm, monkeypatch):
    monkeypatch.setattr(Path, "stat", fail)
    assert farm.goes_on


def test_a_keeper_that_looks_while_it_is_asked_submits_one_job(kept, submitted, monkeypatch):
    kept.write()
    replace = Path.replace

    def looked_at(path: Path, target: Path) -> Path:
        kept.submit_renewals()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", looked_at)
    kept.renew("0badcafe")
    kept.submit_renewals()
    [job] = submitted
    assert job.folder.name.startswith("renewal-0badcafe-")


def test_nothing_is_submitted_after_the_farm_has_ended(farm, submitted):
    clock = Clock(t50=(farm.folder / "farm.json").unlink)
    attended(farm, clock)
    assert submitted == []
    assert clock.now < 55


def test_where_nodes_cannot_submit_a_job_on_the_submitting_host_does(kept, submitted):
    script = ("exec /opt/kit/bin/python -I -m deploy.engines.farm_keeper farm numl-farm-1",)
    beside = ("universe = scheduler", "on_exit_remove = ExitCode =?= 0")
    needs = Resources(options=beside, setup=("module load apptainer",))
    keeper = Job("numl-farm-1-keeper", 1, script, kept.folder / "jobs/keeper", needs)
    assert kept.keeper() == keeper
    entry = attended(kept, Clock())
    assert submitted == []
    submitted.faults = [KitError("condor_submit failed: busy"), OSError(errno.EIO, "I/O error")]
    keep(kept, Clock(t60=(kept.folder / "farm.json").unlink).sleep)
    assert [job.script[-1].split()[-1] for job in submitted] == [entry.name]
    assert submitted.faults == []


def test_status_of_a_farm_says_why_a_server_is_not_ready(farm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Slurm, "listed", lambda *_: [])
    monkeypatch.setenv("COLUMNS", "300")
    with grpc_server(Authority(tmp_path, "site").issue("127.0.0.1")) as port:
        farm.registry.enter(f"grpcs://127.0.0.1:{port}")
        assert status(["--name", farm.name]) == 1
    assert f"the certificate of 127.0.0.1:{port} was not issued by" in capsys.readouterr().out


@pytest.fixture
def cancelled(monkeypatch):
    """The jobs that were cancelled; one waits when they are first looked for."""
    found: list[str] = []
    waiting = [{0: Task(False)}, {}]
    monkeypatch.setattr(Slurm, "active", lambda *_: waiting.pop(0))
    monkeypatch.setattr(Slurm, "cancel", lambda _self, name: found.append(name))
    monkeypatch.setattr("deploy.engines.farm.time.sleep", lambda _: None)
    return found


@pytest.fixture
def handlers():
    """Give signals back to whom they belonged."""
    before = {each: signal.getsignal(each) for each in ENDING}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("fault", ["silent", *ENDING])
@pytest.mark.usefixtures("handlers")
def test_a_farm_whose_end_is_broken_off_can_be_ended_by_another_down(farm, cancelled, fault):
    def broken_off(_self: object, _name: str) -> None:
        if fault != "silent":
            signal.raise_signal(fault)
        raise KitError("squeue failed: Unable to contact slurm controller")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slurm, "active", broken_off)
        assert down(["--name", "farm"]) == (1 if fault == "silent" else 128 + fault)
    assert read_farm("farm") == farm
    assert down(["--name", "farm"]) == 0
    assert cancelled == [farm.job]
    assert not farm.folder.exists()


def test_a_farm_whose_down_was_killed_is_known_and_its_jobs_are_cancelled(
    farm, monkeypatch, submitted, cancelled
):
    class KilledError(BaseException):
        """Nothing runs after it."""

    def killed(*_: object) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slurm, "active", killed)
        patch.setattr(Farm, "write", killed)
        with pytest.raises(KilledError):
            down(["--name", "farm"])
    assert not farm.goes_on
    assert (read_farm("farm"), known_farms()) == (farm, ("farm",))
    monkeypatch.setattr(Slurm, "listed", lambda *_: [(0, Task(False))])
    with pytest.raises(LaunchError, match="farm is running with different settings"):
        start_farm(farm.model_copy(update={"job": "numl-farm-2", "models": ("nugraph2",)}))
    assert down(["--all"]) == 0
    assert (cancelled, submitted, farm.folder.exists()) == ([farm.job], [], False)


def test_a_job_of_a_farm_that_has_ended_does_not_join_another_of_its_name(
    farm, monkeypatch, entered
):
    monkeypatch.setattr(farm_keeper, "keep", lambda _: pytest.fail("it joins"))
    run_job(farm, "up-1-0", job="numl-farm-0")
    assert farm_keeper.main([farm.name, "numl-farm-0"]) == 0
    assert entered == []


def test_the_servers_url_is_that_of_its_node(farm, entered):
    assert reachable("grpcs://127.0.0.1:8443", "node7") == "grpcs://node7:8443"
    run_job(farm, "up-1-0")
    assert [entry.url for entry in entered] == ["grpc://node7:9001"]


@pytest.mark.parametrize("asking", ["farm", "kept"], ids=["by itself", "by a keeper"])
def test_a_job_that_began_again_after_it_asked_for_its_renewal_is_no_server_too_many(
    request, entered, submitted, asking
):
    """As a batch system has it begin again: its node failed, or another job was preferred."""
    farm = request.getfixturevalue(asking)
    for _ in range(2):
        run_job(farm, "up-1-0")
    farm.renew(entered[0].name)
    run_job(farm, "up-1-0")
    assert entered == [entered[0]] * 2
    farm.submit_renewals()
    assert [job.script[-1].split()[-1] for job in submitted] == [entered[0].name]


def test_a_renewal_that_is_submitted_twice_is_two_jobs(farm, submitted):
    farm.renew("0badcafe")
    farm.renew("0badcafe")
    assert len({job.folder for job in submitted}) == 2


def test_a_job_s_age_is_what_its_batch_system_counts():
    now = [1000.0]
    age = farm_server.Age(60.0, lambda: now[0])
    for later, wanted in ((1, 61), (200, 261), (8 * 3600, 261), (1, 262)):  # suspended overnight
        now[0] += later
        assert age() == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "slurm"), "would listen on 127.0.0.1 only"),
        (("--engine", "slrum"), "--engine slrum: No such file or directory"),
        (("--engine", "local", "--servers", "2"), "--servers needs --engine with a batch system"),
        (
            ("--engine", "local", "--name", "farm"),
            "error: farm is a farm of batch jobs\n"
            "  try: another --name, or numlkit down --name farm first\n",
        ),
    ],
)
@pytest.mark.usefixtures("farm")
def test_what_cannot_be_started_as_jobs_or_has_the_name_of_some_is_refused(words, said, capsys):
    assert up(words) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_shows_the_job(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--engine", "slurm", "--servers", "2", "--listen", "0.0.0.0", "--image", "x.sif"]
    assert up([*words, "--name", "f", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "#SBATCH --array=0-1\n" in said
    assert " exec --quiet --listen 0.0.0.0 --image x.sif --engine apptainer -- " in said
