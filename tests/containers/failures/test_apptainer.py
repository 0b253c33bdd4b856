"""Each way Apptainer is known to refuse, provoked; what cannot be provoked is recorded.

The recorded words are in tests/unit/deploy/host/test_failures.py.
"""

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from deploy.deployment.plan import ContainerPlan, LaunchPlan, Mount
from deploy.engines import server
from deploy.engines.instance import (
    InstanceServer,
    config_folder,
    instance_command,
    instance_files,
    stop_instance,
)
from deploy.engines.kept import keep
from deploy.host.errors import LaunchError
from deploy.host.failures import diagnose
from deploy.host.files import sha256_of
from tests import plans
from tests.containers.failures.tiny import make_sif
from tests.containers.sif.conftest import Host, ordinary_user
from tests.kit import open_to_all, until
from tests.programs import run_program, running

__all__ = ["ordinary_user"]  # a fixture

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change what a process sees")


@pytest.fixture(scope="session")
def sif(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    open_to_all(folder)
    return make_sif(folder / "tiny.sif")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "server.log").touch()
    (tmp_path / "model_repository").mkdir()
    # The program that waits is no Triton: it never gives a name.
    monkeypatch.setattr(server, "_START_TIMEOUT_S", 0.5)
    return tmp_path


@pytest.fixture
def name(folder):
    name = f"numlkit-test-{secrets.token_hex(4)}"
    yield name
    stop_instance(name, folder)


def make_plan(
    folder: Path, sif: Path, name: str, *, source: Path | None = None, gpus: tuple[str, ...] = ()
) -> LaunchPlan:
    mount = Mount(source=source or folder / "model_repository", target=Path("/opt"))
    return plans.make_plan(
        folder,
        engine="apptainer",
        arguments=("tritonserver",),
        shm_prefix=f"{name}-",
        identity=name,
        container=ContainerPlan(image=str(sif), name=name, mounts=(mount,), gpus=gpus),
    )


def start(plan: LaunchPlan) -> InstanceServer:
    return InstanceServer(plan, lambda **_changes: None)


def refusal(plan: LaunchPlan) -> LaunchError:
    return plans.refusal(lambda: start(plan))


def test_an_instance_that_is_there_already_is_named(folder, sif, name):
    start(make_plan(folder, sif, name))
    assert [file.stem for file in instance_files(folder)] == [name]
    error = refusal(make_plan(folder, sif, name))
    assert error.cause == f"an instance named {name} already exists"
    assert f"apptainer instance stop {name}" in (error.remedy or "")


def test_a_server_whose_log_somebody_removed_is_started_with_a_new_one(folder, sif, name):
    plan = make_plan(folder, sif, name)
    plan.log.unlink(missing_ok=True)
    start(plan)
    assert plan.log.is_file()


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x7fELF"])
def test_a_file_that_is_no_sif_is_named(folder, name, content):
    path = folder / "not.sif"
    path.write_bytes(content)
    error = refusal(make_plan(folder, path, name))
    assert error.cause == f"{path} is not a .sif file"


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"sif": Path("/no/such.sif")}, "{sif}: no such file"),
        (
            {"source": Path("/no/such")},
            "{source} does not exist and cannot be mounted in the container",
        ),
    ],
    ids=["sif", "folder"],
)
def test_what_is_not_there_is_named(folder, sif, name, settings, cause):
    error = refusal(make_plan(folder, name=name, **{"sif": sif} | settings))
    assert error.cause == cause.format(**settings)


def test_a_copy_that_has_changed_since_it_was_verified_is_not_started(folder, sif, name):
    kept = keep(sif, sha256_of(sif), folder)
    plan = make_plan(folder, kept, name)
    digest = plan.contained.model_copy(update={"digest": kept.stem})
    start(plan.model_copy(update={"container": digest}))
    stop_instance(name, folder)
    kept.chmod(0o700)
    kept.write_bytes(make_sif(folder / "other.sif", partarch=4).read_bytes())
    error = refusal(plan.model_copy(update={"container": digest}))
    assert (
        error.cause
        == f"{kept} is not the .sif that the deployment was started from: it has changed"
    )


def test_a_sif_that_is_cut_off_is_named(folder, sif, name):
    path, content = folder / "cut.sif", sif.read_bytes()
    path.write_bytes(content[: int(0.9 * len(content))])
    path.chmod(0o755)
    assert refusal(make_plan(folder, path, name)).cause == "the .sif is damaged or truncated"


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        ({"partarch": 4}, "the .sif is for arm64 processors; this host's is amd64"),
        ({"runs": None}, "the .sif has no usable start script: it was not built by this kit"),
    ],
    ids=["for another processor", "without a start script"],
)
def test_a_sif_that_cannot_run_here_is_named(folder, name, made, cause):
    assert refusal(make_plan(folder, make_sif(folder / "other.sif", **made), name)).cause == cause


def _limits(sif: Path, name: str) -> list[str]:
    return ["apptainer", "instance", "run", "--containall", "--memory", "200m", str(sif), name]


def test_limits_without_cgroups_are_named(folder, sif, name):
    """Provoked where systemd does not run; where it does, the text is recorded."""
    environment = {**os.environ, "APPTAINER_CONFIGDIR": str(config_folder(folder))}
    done = run_program(_limits(sif, name), env=environment)
    if done.returncode == 0:
        done.stderr = (
            "FATAL:   container creation failed: while applying cgroups config: cannot use "
            "cgroups - cannot use systemd cgroups manager, systemd not running as init\n"
        )
    known = diagnose(done.stderr)
    assert known is not None
    assert known.cause.startswith("Apptainer cannot limit CPUs or memory here: ")


# What an ordinary user meets. As root, the tests hide things from a child of theirs.


def _as_ordinary(host: Host, folder: Path, plan: LaunchPlan, before: str) -> LaunchError:
    """Start an instance as an ordinary user, after ``before`` in a mount name space."""
    folder.chmod(0o777)
    config = f"APPTAINER_CONFIGDIR={config_folder(folder)}"
    words = host.words("env", config, *instance_command(plan))
    script = f'set -e; mount --make-rprivate /; {before}; exec "$@"'
    done = run_program(["unshare", "--mount", "sh", "-c", script, "sh", *words], cwd="/")
    assert done.returncode != 0, done.stderr
    known = diagnose(done.stderr)
    assert known is not None, done.stderr
    return known


@pytest.fixture
def readable(folder):
    """The test's folder, which an ordinary user may use."""
    open_to_all(folder)
    return folder


@ROOT
@pytest.mark.parametrize(
    ("device", "cause"),
    [
        ("mknod -m 600 {0}/fuse c 10 229; mount --bind {0}/fuse /dev/fuse",
         "this user may not open /dev/fuse, which Apptainer needs to mount a .sif"),
        ("mount --bind /dev/null /dev/fuse",
         "no usable /dev/fuse here, which Apptainer needs to mount a .sif without root"),
    ],
)  # fmt: skip
def test_a_user_who_may_not_mount_a_sif_is_told_what_it_takes(
    ordinary_user, readable, sif, device, cause
):
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse to be hidden")
    plan = make_plan(readable, sif, "hidden")
    known = _as_ordinary(ordinary_user, readable, plan, device.format(readable))
    assert known.cause == cause
    assert "apptainer-suid" in known.remedy


@ROOT
def test_a_folder_that_is_too_small_to_unpack_the_sif_is_named(ordinary_user, readable, sif):
    small = readable / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=4k,mode=1777 none {small}"
    settings = f"export APPTAINER_TMPDIR={small} APPTAINER_UNSQUASH=1"
    plan = make_plan(readable, sif, "unpacked")
    known = _as_ordinary(ordinary_user, readable, plan, f"{mount}; {settings}")
    assert known.cause == "the folder for temporary files is too small to unpack the .sif into"


@ROOT
def test_a_host_without_user_namespaces_is_named(ordinary_user, readable, sif):
    """In a user name space of its own, whose limit of further ones is nought."""
    readable.chmod(0o777)
    account = ordinary_user.account
    command = ["env", f"APPTAINER_CONFIGDIR={config_folder(readable)}"]
    command += instance_command(make_plan(readable, sif, "unspaced"))
    done = _in_user_namespace(
        command, "/proc/sys/user/max_user_namespaces", account.pw_uid, account.pw_gid
    )
    known = diagnose(done)
    assert known is not None, done
    assert known.cause.startswith("ordinary users may not create namespaces here")
    assert "max_user_namespaces" in known.remedy


def _in_user_namespace(command: list[str], limit: str, user: int, group: int) -> str:
    """Run a command as a user of a new user name space in which ``limit`` is 0."""
    identity = (f"--reuid={user}", f"--regid={group}", "--clear-groups")
    # What is executed once the ids are mapped is root of the name space, and may set its limit.
    limiting = """sh -c 'echo 0 >"$0" && exec setpriv "$@"'"""
    script = f'read -r _ && exec {limiting} "$0" "$@"'
    words = ("unshare", "--user", "sh", "-c", script, limit, *identity, *command)
    with running(*words, stderr=subprocess.PIPE) as process:
        own, folder = Path("/proc/self/ns/user").readlink(), Path(f"/proc/{process.pid}")
        until(lambda: (folder / "ns/user").readlink() != own, "a name space")
        for kind in ("uid_map", "gid_map"):
            (folder / kind).write_text("0 0 65536")
        return process.communicate("\n")[1]
