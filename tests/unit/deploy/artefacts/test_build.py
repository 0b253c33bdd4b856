"""Around the artefacts: the manifest, the steps, which source they are made from."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.artefacts import labels
from deploy.artefacts.build import Steps, check_libc
from deploy.artefacts.labels import find_source, published
from deploy.artefacts.manifest import read_manifest, record
from deploy.artefacts.request import BuildRequest
from deploy.environment.environment import plan_environment
from deploy.host.cli import describe_os_error
from deploy.host.console import Console
from deploy.host.errors import BuildError
from deploy.triton.release import find_release
from tests.artefacts import artefact
from tests.programs import run_program, write_program


def test_a_build_replaces_its_own_entries_and_keeps_those_whose_files_are_there(tmp_path):
    for name in ("a.tar.gz", "b.tar.gz"):
        (tmp_path / name).touch()
    for kind, name in (("env", "a.tar.gz"), ("env", "b.tar.gz"), ("env", "gone"), ("image", "i")):
        record(tmp_path, artefact(kind, name, "0"))
    record(tmp_path, artefact("env", "a.tar.gz", "1"))
    found = {(a.kind, a.name): a.sha256 for a in read_manifest(tmp_path).artefacts}
    assert found == {("env", "a.tar.gz"): "1", ("env", "b.tar.gz"): "0", ("image", "i"): "0"}


def test_a_manifest_that_is_none_is_named(tmp_path):
    out = tmp_path / "two words"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(BuildError, match=r"manifest\.json: not this kit's manifest") as raised:
        read_manifest(out)
    assert raised.value.remedy == f"rm '{out}/manifest.json'"


def test_a_step_that_fails_is_not_counted_and_a_full_disk_is_named_by_its_folder(tmp_path):
    steps = Steps(Console("quiet"))
    with steps.step("first", tmp_path):
        pass
    with (
        pytest.raises(OSError, match="No space left") as caught,
        steps.step("second", tmp_path),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert list(steps.seconds) == ["first"]
    # Of a write to a file that is open the system names none.
    error = describe_os_error(caught.value)
    assert error.cause == f"disk full: {tmp_path}: No space left on device"


def copied(source: Path, target: Path) -> str:
    """Return what is said of a folder whose copy fails."""
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(source, target, dirs_exist_ok=True)
    told = describe_os_error(caught.value)
    return f"{told.cause}; try: {told.remedy}"


def test_a_folder_for_which_there_is_no_room_is_told_by_one_file(tmp_path):
    folder, target = tmp_path / "model", tmp_path / "copy"
    for name in ("a", "b"):
        for place in (folder, target):
            (place / name).mkdir(parents=True)
        (folder / name / "weights").write_text("1")
        (target / name / "weights").symlink_to("/dev/full")
    said = copied(folder, target)
    for name in ("a", "b"):  # in the file system's order
        said = said.replace(f"/{name}/", "/X/")
    cause = f"disk full: {target}/X/weights: No space left on device"
    assert said == f"{cause}; try: free space there (df -h), then run the command again"


def test_a_pipe_in_a_folder_that_is_copied_is_named(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    assert copied(folder, tmp_path / "copy") == f"`{folder}/pipe` is a named pipe; try: None"


AGAIN = "then run the command again"
OURS = "set XDG_CACHE_HOME and XDG_STATE_HOME to folders"
LOCKS = f"{OURS} of a disk with locks, as a local one"


@pytest.mark.parametrize(
    ("number", "place", "target", "remedy"),
    [
        (errno.ENOSPC, "kit/weights", "state/weights",
         f"free space there (df -h), {AGAIN}"),
        (errno.EDQUOT, "kit/weights", "state/weights",
         f"free space there, or have your quota raised (quota -s), {AGAIN}"),
        (errno.EFBIG, "kit/weights", "state/weights",
         f"raise the limit of file sizes (ulimit -f), {AGAIN}"),
        (errno.EACCES, "cache/numlkit/triton", None, f"{OURS} that you can write to"),
        (errno.EACCES, "results.h5", None,
         "check its owner and permissions, and those of its folder (ls -ld)"),
        (errno.ENOLCK, "state/numlkit/a", None, LOCKS),
        (errno.EOPNOTSUPP, "state/numlkit/a", None, LOCKS),
        (errno.ENOSYS, "state/numlkit/a", None, LOCKS),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_told_by_where_it_was_to_go(home, number, place, target, remedy):
    paths = (str(home / place), None, target and str(home / target))  # as shutil's copies say it
    told = describe_os_error(OSError(number, os.strerror(number), *paths))
    where = f"{home / (target or place)}: {os.strerror(number)}"
    assert told.cause == (f"disk full: {where}" if number == errno.ENOSPC else where)
    assert told.remedy == remedy


@pytest.fixture
def git(tmp_path):
    """Runs git in a folder with a commit, and returns what it says."""

    def run(*words: str) -> str:
        return run_program(["git", "-C", tmp_path, *words], check=True).stdout

    run("init", "--quiet")
    run("config", "user.name", "a")
    run("config", "user.email", "a@b")
    run("commit", "--quiet", "--allow-empty", "--message=x")
    return run


def test_a_build_is_given_the_commits_time_unless_another_is_given(git, tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    commit, time = git("log", "-1", "--format=%H %ct").split()
    source = find_source(tmp_path)
    assert (source.revision, source.epoch) == (commit, int(time))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert find_source(tmp_path).epoch == 1_700_000_000
    for wrong in ("soon", "1700000000000"):  # those are milliseconds
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(BuildError, match=f"SOURCE_DATE_EPOCH='{wrong}' is not a number"):
            find_source(tmp_path)


def test_an_installed_kit_has_the_time_that_is_given_or_its_wheels(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "IS_INSTALLED", True)
    told = {"revision": "abc", "epoch": 5, "url": ""}
    (tmp_path / labels.SOURCE_FILE).write_text(json.dumps(told))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert find_source(tmp_path) == labels.Source("abc", 5, "")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert find_source(tmp_path) == labels.Source("abc", 1_700_000_000, "")


def test_a_folder_without_history_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert find_source(tmp_path).revision == "unknown"


def test_a_signed_commit_is_told_where_git_shows_signatures(git, tmp_path):
    tells = r"printf '\n[GNUPG:] SIG_CREATED \n' >&2; echo -----BEGIN PGP SIGNATURE-----"
    git("config", "gpg.program", str(write_program(tmp_path / "s", f"cat >/dev/null\n{tells}")))
    git("config", "log.showSignature", "true")
    git("commit", "--quiet", "--allow-empty", "--message=x", "--gpg-sign")
    assert "PGP SIGNATURE" in git("cat-file", "commit", "HEAD")
    assert find_source(tmp_path).revision == git("rev-parse", "HEAD").strip()


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://user:secret@example.org/numl/kit.git", "https://example.org/numl/kit"),
        ("git@example.org:numl/kit.git", "https://example.org/numl/kit"),
        ("ssh://git@example.org/numl/kit", "https://example.org/numl/kit"),
        ("/srv/git/kit", ""),
        ("", ""),
    ],
)
def test_a_remote_is_named_without_secrets_and_a_folder_not_at_all(remote, url):
    assert published(remote) == url


def test_an_environment_that_nvidias_image_is_too_old_for_is_refused(tmp_path):
    release = find_release("24.10")
    environment = replace(plan_environment("serving", relocatable=True), folder=tmp_path)
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF\x02\x01\0GLIBC_2.35\0GLIBC_2.9\0")
    check_libc(environment, release)
    library.write_bytes(b"\x7fELF\x02\x01\0GLIBC_2.35\0GLIBC_2.36\0")
    with pytest.raises(BuildError, match=r"needs glibc 2\.36; NVIDIA's Triton .* image has 2\.35"):
        check_libc(environment, release)


@pytest.mark.parametrize(
    ("python", "sites", "suite"),
    [(35, 35, "bookworm"), (36, 35, "bookworm"), (38, 35, "trixie"), (35, 38, "trixie")],
)
def test_the_base_is_new_enough_for_the_python_of_every_environment(tmp_path, python, sites, suite):
    environments = []
    for name, glibc in (("own", python), ("sites", sites)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "lib.so").write_bytes(b"\x7fELF\x02\x01\0GLIBC_2.%d\0" % glibc)
        planned = plan_environment("serving", relocatable=True)
        environments.append(replace(planned, folder=folder))
    request = BuildRequest(("image",), "serving", find_release("24.10"), tmp_path)
    assert request.base_name(environments) == f"docker.io/library/debian:{suite}-slim"
    ngc = replace(request, base="ngc")
    assert ngc.base_name(environments) == "nvcr.io/nvidia/tritonserver:24.10-py3"
