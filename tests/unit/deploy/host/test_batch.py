"""Batch jobs: what is rendered, and what batch systems say. tests/integration runs a real Slurm."""

import subprocess
from pathlib import Path

import pytest

from deploy.host.batch.jobs import BatchSystem, Job, Resources, Task, watch
from deploy.host.batch.settings import SYSTEMS, load_settings
from deploy.host.errors import DeploymentError, KitError
from deploy.host.paths import CHECKOUT
from tests.programs import write_program

SITE = """\
engine = "{engine}"
jobs = 50
cpus = 2
memory = "4g"
hours = 1.5
options = [{option!r}]
setup = ["module load apptainer"]
"""
BODY = """\
trap 'echo "a line of setup ended this job: exit status $?" >&2' EXIT
set -e
module load apptainer
set +e
trap - EXIT
exec label $TASK
"""
SLURM = f"""\
#!/bin/sh
#SBATCH --job-name=numl-1
#SBATCH --array=0-19
#SBATCH --output=%a.log
#SBATCH --cpus-per-task=2
#SBATCH --mem=3815M
#SBATCH --time=90
#SBATCH --account=dune
TASK=$SLURM_ARRAY_TASK_ID
{BODY}"""
CONDOR_SCRIPT = f"""\
#!/bin/sh
TASK=$1
{BODY}"""
CONDOR = """\
executable = job.sh
arguments = $(Process)
batch_name = numl-1
output = $(Process).log
error = $(Process).log
log = job.events
should_transfer_files = NO
getenv = HOME, PATH, XDG_*
request_cpus = 2
request_memory = 3815
allowed_job_duration = 5400
accounting_group = dune
queue 20
"""


@pytest.mark.parametrize(
    ("engine", "option", "rendered"),
    [
        ("slurm", "--account=dune", {"job.sh": SLURM}),
        ("htcondor", "accounting_group = dune", {"job.sh": CONDOR_SCRIPT, "job.sub": CONDOR}),
    ],
)
def test_a_site_s_job_as_it_is_submitted(engine, option, rendered, tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(SITE.format(engine=engine, option=option))
    settings = load_settings(str(file), {"jobs": None})
    assert settings.jobs == 50
    job = Job("numl-1", 20, ("exec label $TASK",), Path("/shared/batch"), settings)
    assert SYSTEMS[settings.engine]().render(job) == rendered


@pytest.mark.parametrize(
    ("setup", "status", "said"),
    [
        (["module load apptainer", "true"], 127, "a line of setup ended this job: exit status 127"),
        (["if true; then", "  exit 3  # no such card", "fi"], 3, "ended this job: exit status 3"),
        (["false || true", "[ -e /none ] && none", "ready=yes"], 0, "label 7 yes"),
    ],
)
def test_a_line_of_setup_that_fails_ends_the_job_and_is_told_in_its_log(setup, status, said):
    script = ("false", 'echo label "$TASK" "$ready"')
    job = Job("numl-1", 1, script, Path("/x"), Resources(setup=tuple(setup)))
    text = SYSTEMS["htcondor"]().render(job)["job.sh"]
    variables = {"PATH": "/usr/bin:/bin"}  # no module of this host's
    done = subprocess.run(
        ["sh", "-c", text, "job.sh", "7"], env=variables, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stdout.splitlines()[-1].endswith(said)
    assert ("label" in done.stdout) == (status == 0)


def test_the_site_files_of_the_repository_are_understood():
    files = sorted((CHECKOUT / "deploy/sites/batch").glob("*.toml"))
    assert [load_settings(str(file), {}).engine for file in files] == ["slurm"]


@pytest.mark.parametrize("name", ["90%efficiency", "a\\b"])
def test_a_folder_whose_name_slurm_would_change_is_refused(name):
    job = Job("numl-1", 1, ("true",), Path("/shared") / name, Resources())
    with pytest.raises(KitError) as caught:
        SYSTEMS["slurm"]().render(job)
    assert caught.value.cause.startswith(f"/shared/{name}: Slurm writes no logs there")


def test_an_option_with_the_mark_of_slurm_before_it_is_heeded():
    needs = Resources(options=("#SBATCH --partition=gpu", "--account=dune"))
    rendered = SYSTEMS["slurm"]().render(Job("numl-1", 1, ("true",), Path("/x"), needs))
    lines = rendered["job.sh"].splitlines()
    assert lines[5:7] == ["#SBATCH --partition=gpu", "#SBATCH --account=dune"]


@pytest.mark.parametrize(
    ("engine", "file", "lines"),
    [
        ("slurm", "job.sh", ("--mem", "--time")),
        ("htcondor", "job.sub", ("request_memory", "allowed_job_duration")),
    ],
)
def test_without_a_site_file_the_batch_system_s_own_defaults_hold(engine, file, lines):
    job = Job("numl-1", 1, ("true",), Path("/x"), Resources())
    rendered = SYSTEMS[engine]().render(job)[file]
    assert not [line for line in lines if line in rendered]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs = 1", "site.toml: engine: Field required"),
        ('engine = "pbs"', "site.toml: engine: Input should be 'slurm' or 'htcondor'"),
        ('engine = "slurm"\njob = 1', "site.toml: job: no such key (valid keys: cpus, memory, "),
        ('engine = "slurm"\njobs = 0', "site.toml: jobs: Input should be greater than or equal"),
        ("engine = ", "--engine site.toml: not TOML: "),
        (f"jobs = {'[' * 9000}", "--engine site.toml: not TOML: nested too deeply"),
        ("# " + 40_000 * "x", "--engine site.toml: larger than 32 KiB"),
    ],
)
def test_a_wrong_site_file_is_told_with_its_key(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("site.toml").write_text(text)
    with pytest.raises(DeploymentError) as caught:
        load_settings("site.toml", {})
    assert caught.value.cause.startswith(said)


@pytest.mark.parametrize(
    ("others", "known"),
    [((), "slurm, htcondor"), (("local", "docker"), "local, docker, slurm, htcondor")],
    ids=["of infer", "of up"],
)
def test_an_engine_that_is_neither_known_nor_a_file_is_told(others, known):
    with pytest.raises(DeploymentError) as caught:
        load_settings("sge", {}, others)
    assert caught.value.cause == "--engine sge: No such file or directory"
    assert caught.value.remedy == f"one of {known}, or a TOML file"


class Scripted(BatchSystem):
    """Answers with one state of a job after the other, None: not at all; and refuses to cancel."""

    def __init__(self, *answers: dict[int, Task] | None, refusals: int = 0) -> None:
        self.answers, self.refusals, self.cancelled = list(answers), refusals, list[int | None]()

    def render(self, job):
        return {}

    def listed(self, name):
        answer = self.answers.pop(0)
        if answer is None:
            raise KitError("squeue failed: Unable to contact slurm controller")
        return list(answer.items())

    def ended(self, name):
        return {}

    def cancel(self, name, task=None):
        self.refusals -= 1
        if self.refusals >= 0:
            raise KitError("scancel failed: Socket timed out")
        self.cancelled.append(task)


def test_a_job_is_watched_until_no_task_is_left_and_a_stuck_one_is_cancelled():
    held = {0: Task(True), 1: Task(False, "cannot write the log")}
    system = Scripted(held, None, {0: Task(True)}, {})
    assert [len(tasks) for tasks in watch(system, "x", lambda _: None)] == [2, 1, 0]
    assert system.cancelled == [1]


def test_what_squeue_lists_is_a_task_stuck_if_it_is_never_started_or_passed_over(
    tmp_path, monkeypatch
):
    # What is left of an array that is cancelled before it began; a site's wrapper; an id.
    rows = ("Welcome to the cluster", "N/A|CANCELLED|None", "3|RUNNING|None", "7", "Bye | bye | 1")
    stuck = {4: "PartitionTimeLimit", 5: "JobHoldMaxRequeue"}
    rows += ("6|PENDING|Priority", *(f"{task}|PENDING|{why}" for task, why in stuck.items()))
    write_program(tmp_path / "squeue", "\n".join(f"echo '{row}'" for row in rows))
    write_program(tmp_path / "scancel", f'echo "$@" >>{tmp_path}/cancelled')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    slurm = SYSTEMS["slurm"]()
    waiting = {6: Task(False), **{task: Task(False, why) for task, why in stuck.items()}}
    assert slurm.active("numl-1") == {3: Task(True), **waiting}
    assert slurm.ended("numl-1") == {}
    slurm.cancel("numl-1")
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_a_stuck_task_that_cannot_be_cancelled_yet_is_cancelled_later():
    stuck = {0: Task(False, "cannot write the log")}
    system = Scripted(stuck, stuck, {}, refusals=1)
    assert list(watch(system, "x", lambda _: None)) == [stuck, {}]
    assert system.cancelled == [0]


def test_a_batch_system_that_stays_silent_ends_the_watch():
    pauses = []
    with pytest.raises(KitError, match="Unable to contact"):
        list(watch(Scripted(*[None] * 1000), "x", pauses.append))
    assert 300 < sum(pauses) < 900


def test_a_host_without_the_batch_system_s_commands_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KitError) as caught:
        SYSTEMS["slurm"]().active("x")
    assert caught.value.cause == "there is no squeue on this host"


def test_a_user_s_variables_do_not_change_what_slurm_is_asked(tmp_path, monkeypatch):
    commands, kept = ("sbatch", "squeue", "scancel"), {"SBATCH_ACCOUNT", "SLURM_CONF"}
    dropped = {"SBATCH_JOB_NAME", "SBATCH_TIMELIMIT", "SQUEUE_PARTITION", "SCANCEL_INTERACTIVE"}
    for command in commands:
        write_program(tmp_path / command, f"env >{tmp_path}/{command}.env; echo 7")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in kept | dropped:
        monkeypatch.setenv(name, "theirs")
    slurm = SYSTEMS["slurm"]()
    slurm.submit(Job("numl-1", 1, ("true",), tmp_path / "job", Resources()))
    slurm.cancel("numl-1")
    for command in commands:
        said = (tmp_path / f"{command}.env").read_text()
        assert {name for name in kept | dropped if f"{name}=theirs\n" in said} == kept


# What Fermilab's and justIN's hosts have, for one file that is copied from and to folders.
IFDH = 'if [[ $1 == ls ]]; then ls "$2"; else cp "$2" "$3"; fi'
GET_FILE = 'echo "dune:b.h5 $STORE/b.h5 RSE"'
XRDCP = 'cp "$2" "$3"'
# Stands in for `numlkit exec ... -- numlkit infer FILES --into FOLDER`, and fails for bad.h5.
NUMLKIT = """\
while [[ $1 != infer ]]; do shift; done
for file in "${@:2}"; do
  name=$(basename "$file" .h5)
  if [[ $file == --into ]]; then break; fi
  if [[ $name == bad ]]; then exit 1; fi
  echo "labels of $(cat "$file")" >labels/$name.h5
  echo record >labels/$name.json
done
"""


@pytest.fixture
def worker(tmp_path):
    """Run a site's script where all that it calls is a stand-in; return its folder and status."""
    programs = {"ifdh": IFDH, "justin-get-file": GET_FILE, "numlkit": NUMLKIT, "xrdcp": XRDCP}
    for name, text in programs.items():
        write_program(tmp_path / name, f"#!/bin/bash\n{text}")
    for folder in ("store", "labels"):
        (tmp_path / folder).mkdir()

    def run(script, number):
        scratch = tmp_path / f"scratch{number}"
        scratch.mkdir()
        variables = {
            "PATH": f"{tmp_path}:/usr/bin:/bin", "NUMLKIT": f"{tmp_path}/numlkit",
            "STORE": f"{tmp_path}/store", "LABELS": f"{tmp_path}/labels", "PROCESS": str(number),
            "INPUT_TAR_DIR_LOCAL": str(tmp_path), "JUSTIN_PATH": str(tmp_path),
        }  # fmt: skip
        path = CHECKOUT / "deploy/sites/batch" / script
        done = subprocess.run(["bash", path], cwd=scratch, env=variables, check=False)
        return scratch, done.returncode

    return run


@pytest.mark.parametrize(
    ("names", "labelled"), [(("a", "ahead", "bad"), "a"), (("a", "gone", "c"), "ac")]
)
def test_a_job_of_jobsub_labels_what_it_can_of_its_share_and_keeps_what_it_has_done(
    worker, tmp_path, names, labelled
):
    files = [tmp_path / "store" / f"{name}.h5" for name in names]
    for file in files:
        if file.stem != "gone":
            file.write_text(file.stem)
    (tmp_path / "labels/ahead.json").write_text("an earlier record")
    (tmp_path / "share.0007").write_text("\n".join(map(str, files)))  # as split leaves it
    assert worker("jobsub.sh", 7)[1] == 1
    kept = {path.name: path.read_text() for path in (tmp_path / "labels").iterdir()}
    new = {f"{name}.h5": f"labels of {name}\n" for name in labelled}
    new |= {f"{name}.json": "record\n" for name in labelled}
    assert kept == {"ahead.json": "an earlier record", **new}


def test_a_result_that_cannot_be_copied_back_costs_no_other(worker, tmp_path):
    files = [tmp_path / "store" / f"{name}.h5" for name in "abc"]
    for file in files:
        file.write_text(file.stem)
    (tmp_path / "share.0007").write_text("".join(f"{file}\n" for file in files))
    (tmp_path / "labels/b.h5").mkdir()  # the store refuses to replace it
    (tmp_path / "labels/b.h5/b.h5").mkdir()
    assert worker("jobsub.sh", 7)[1] == 1
    assert {path.name for path in (tmp_path / "labels").glob("*.json")} == {"a.json", "c.json"}


def test_a_jobscript_of_justin_labels_the_file_that_it_is_given(worker, tmp_path):
    (tmp_path / "store/b.h5").write_text("b")
    scratch, status = worker("justin.jobscript", 1)
    assert status == 0
    assert (scratch / "b.h5").read_text() == "labels of b\n"
    assert (scratch / "b.json").read_text() == "record\n"
    assert (scratch / "justin-processed-pfns.txt").read_text() == f"{tmp_path}/store/b.h5\n"


def test_a_jobscript_of_justin_ends_well_where_no_file_is_left(worker, tmp_path):
    (tmp_path / "justin-get-file").write_text("#!/bin/bash\n")
    scratch, status = worker("justin.jobscript", 1)
    assert (status, list(scratch.iterdir())) == (0, [])
