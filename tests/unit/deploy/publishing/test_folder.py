"""A release in a folder: what is seen of it at any moment.

Files of a few bytes stand for a .sif, and nothing for its own check: real ones are published in
tests/containers.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.artefacts.labels import Source
from deploy.artefacts.manifest import record
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.files import sha256_of
from deploy.publishing.folder import FolderPlace
from deploy.publishing.lock import LOCK, alone_in
from deploy.publishing.place import Look, Order, Outcome, Signing
from numl_formats.published import File, Model, Release, published_release
from numl_formats.statement import NAME, statement
from tests.artefacts import artefact

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
# What changes something in a folder; opening a file may, too.
CHANGES = ("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "os.chmod")


def small_files(patch: pytest.MonkeyPatch) -> None:
    """Publish small files, for which no check is run, and which have no signature of their own."""
    patch.setattr("deploy.publishing.built.run", lambda *_, **__: "")
    patch.setattr("deploy.publishing.built.shutil.which", str)
    patch.setattr("deploy.publishing.folder.find_source", lambda _: Source("abc", 0, ""))
    patch.setattr("deploy.publishing.built.sign_built", lambda _, made, *__: made)
    # What is killed here is a process, never the host.
    patch.setattr("deploy.publishing.folder.os.fsync", lambda _: None)


def publish_files(dist: Path, root: Path, *contents: str, **more: Any) -> Outcome:
    """Publish files, as such that were built in ``dist``; return what was done with the last."""
    dist.mkdir(exist_ok=True)
    for content in contents:
        sif = dist / f"{content}.sif"
        sif.write_text(content)
        record(dist, artefact("sif", sif.name, sha256_of(sif)))
        order = Order(Resolved(Deployment()), artefact=sif, **more)
        outcome = FolderPlace(root).publish(order, Console("quiet"))
    return outcome


def served(root: Path) -> str:
    return (root / "current" / "numl.sif").read_text()


def rollback(root: Path, to: str | None = None, *, dry_run: bool = False) -> Outcome:
    return FolderPlace(root).rollback(to, Signing(), dry_run=dry_run)


def prune(root: Path, *, dry_run: bool = False) -> Outcome:
    return FolderPlace(root).prune((), Signing(), Console("quiet"), dry_run=dry_run)


def listed(root: Path) -> dict[str, bool]:
    listing = FolderPlace(root).listing(Look())
    assert listing.problems == ()
    return {entry.release: entry.serving for entry in listing.entries}


def killed_at(step: int, root: Path, action: Callable[[], object]) -> bool:
    """Run ``action`` in a process that dies at its nth change below ``root``; return whether."""
    child = os.fork()
    if child == 0:
        changes = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            # What is in a folder that is removed is named without it.
            there = event == "os.remove" or any(str(root) in str(each) for each in arguments)
            if event in CHANGES and there:
                if changes == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes += 1

        sys.addaudithook(count)
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def killed_anywhere(
    folder: Path, before: Callable[[Path], object], act: Callable[[Path], object]
) -> Iterator[tuple[Path, bool]]:
    """Yield a place after ``before`` and ``act``, which was killed at its nth change, for all n.

    Besides: whether it was; the last one was not.
    """
    for step in itertools.count():
        root = folder / f"place-{step}"
        root.mkdir()
        before(root)
        killed = killed_at(step, root, partial(act, root))
        yield root, killed
        if not killed:
            return


def test_a_publish_that_is_killed_at_any_change_leaves_the_old_release_and_can_be_repeated(
    publish, tmp_path
):
    steps = 0
    for root, killed in killed_anywhere(
        tmp_path, lambda root: publish(root, "old"), lambda root: publish(root, "new")
    ):
        steps += killed
        done = served(root) == "new"
        assert killed or done
        listing = FolderPlace(root).listing(Look())
        assert [each.serving for each in listing.entries] in ([True], [False, True])
        interrupted = (root / "current").readlink() != Path(str(len(listing.entries)))
        assert bool(listing.problems) == interrupted
        again = publish(root, "new")
        assert (again.release, again.changed) == ("2", not done)
        assert served(root) == "new"
        assert listed(root) == {"1": False, "2": True}
        names = sorted(path.name for path in root.iterdir())
        assert names == ["1", "2", "current", "published.json"]
    assert steps > 8


def test_going_back_moves_one_link_and_pruning_keeps_numbers(publish, root):
    publish(root, *"abc")
    assert rollback(root, dry_run=True).changed is False
    assert served(root) == "c"
    assert rollback(root).facts["serving"] == 2
    assert served(root) == "b"
    assert rollback(root, "2").changed is False
    assert prune(root).facts == {"kept": [1, 2], "removed": 1}
    assert listed(root) == {"1": False, "2": True}
    assert publish(root, "d").release == "4"
    with pytest.raises(PublishError, match="there is no release 3") as raised:
        rollback(root, "3")
    assert raised.value.remedy == "use --to with one of: 1, 2"
    assert rollback(root, "1", dry_run=True).lines == ("would switch to release 1",)
    rollback(root, "1")
    with pytest.raises(PublishError, match="release 1 serves, and none served before it"):
        rollback(root)


def test_there_is_nothing_to_go_back_to_where_nothing_is_published(tmp_path):
    with pytest.raises(PublishError, match=f"nothing is published in {tmp_path}") as raised:
        rollback(tmp_path)
    assert raised.value.remedy == f"numlkit publish {tmp_path}"


@pytest.mark.parametrize(
    ("error", "words", "remedy"),
    [
        ([errno.ENOSPC], "No space left on device", "make room there"),
        ([errno.EROFS], "Read-only file system", "cvmfs_server transaction"),
        # As shutil.rmtree says it: without the folder.
        ([errno.EACCES, "numl.sif"], "Permission denied", "cvmfs_server transaction"),
    ],
)
def test_what_cannot_be_written_is_said_of_the_folder(
    error, words, remedy, publish, root, monkeypatch
):
    number, *file = error
    refused = OSError(number, os.strerror(number), *file)
    monkeypatch.setattr("deploy.publishing.folder.os.fsync", Mock(side_effect=refused))
    with pytest.raises(PublishError, match=f"^cannot write to {root}: {words}$") as raised:
        publish(root, "a")
    assert remedy in raised.value.remedy
    assert not any(root.iterdir())


def test_a_folder_with_a_current_of_somebody_else_is_refused_before_anything_is_copied(
    publish, root
):
    (root / "current").mkdir()
    with pytest.raises(PublishError, match=r"place/current is not a link made by the kit"):
        publish(root, "a")
    assert [path.name for path in root.iterdir()] == ["current"]


def test_what_was_published_before_is_switched_to_and_not_copied(publish, root):
    publish(root, *"ab")
    image = root / "1" / "numl.sif"
    before = image.stat()
    assert publish(root, "a", dry_run=True).changed is False
    assert (publish(root, "a").release, served(root)) == ("1", "a")
    after = image.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("kind", ["cdx", "provenance", "vex"])
def test_a_statement_that_was_changed_since_the_build_is_not_published(kind, publish, root, home):
    name = f"a.sif.{kind}.json"
    (home / "dist").mkdir()
    (home / "dist" / name).write_text("changed")
    (home / "dist" / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(PublishError, match=f"{name} is not what was built: SHA256SUMS has"):
        publish(root, "a")


@pytest.mark.parametrize("clock_is_set", [False, True])
def test_two_at_once_are_refused_and_the_folder_holds_no_lock_file(
    clock_is_set, publish, root, monkeypatch
):
    refused = pytest.raises(PublishError, match="is being changed by process")
    with alone_in(root), monkeypatch.context() as patch, refused as said:
        if clock_is_set:
            patch.setattr("psutil._pslinux.boot_time", lambda: 1.0)
        publish(root, "a")
    assert f"rm {root / LOCK}" in said.value.remedy
    assert not any(root.iterdir())


@pytest.fixture
def dead(tmp_path):
    """The owner of a lock on ``tmp_path``: a process of this host that has ended."""
    with alone_in(tmp_path):
        own = json.loads((tmp_path / LOCK).read_text())
    return own | {"pid": 2**22 + 1, "since": "2026-11-23 02:27 UTC"}


@pytest.mark.parametrize(
    "owner",
    [{}, {"pid": 1}, {"pid": os.getpid(), "boot": "before"}],
    ids=["no such process", "another process has its id now", "an earlier boot"],
)
def test_the_lock_of_a_killed_publish_is_taken_over(owner, dead, tmp_path):
    # One that was killed while it took the lock over has left an earlier one aside.
    for name in (LOCK, f"{LOCK}.t0"):
        (tmp_path / name).write_text(json.dumps(dead | owner))
    with alone_in(tmp_path):
        pass
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("put", "whose"),
    [
        ({"host": "a.example.org"}, "process 4194305 on a.example.org, since 2026-11-23"),
        ({"namespace": "pid:[1]"}, "process 4194305 on"),
        ({"boot": "", "token": "../../x/y"}, "someone"),
        ({"pid": -1}, "someone"),
        (os.mkfifo, "someone"),
        (lambda lock: lock.symlink_to("/dev/zero"), "someone"),
    ],
    ids=["another host's", "another container's", "a path", "no process", "a pipe", "no end"],
)
def test_a_lock_whose_owner_nobody_here_can_tell_is_not_taken_over(put, whose, dead, tmp_path):
    lock = tmp_path / LOCK
    put(lock) if callable(put) else lock.write_text(json.dumps(dead | put))
    with pytest.raises(PublishError, match=f"is being changed by {whose}"), alone_in(tmp_path):
        pass
    assert [*tmp_path.iterdir()] == [lock]


def test_the_lock_of_a_process_that_proc_hides_is_not_taken_over(dead, tmp_path, monkeypatch):
    """Another user's where /proc is mounted with hidepid."""
    (tmp_path / LOCK).write_text(json.dumps(dead))
    monkeypatch.setattr("deploy.publishing.lock.os.kill", Mock(side_effect=PermissionError))
    refused = r"is being changed by process 4194305 on .*, since 2026-11-23 02:27 UTC$"
    with pytest.raises(PublishError, match=refused), alone_in(tmp_path):
        pass
    assert (tmp_path / LOCK).is_file()


def test_a_folder_of_an_older_kit_is_read_and_published_to(publish, root):
    for number, content in enumerate(("a", "b"), 1):
        (root / str(number)).mkdir()
        (root / str(number) / "numl.sif").write_text(content)
        digest = sha256_of(root / str(number) / "numl.sif")
        record = {
            "format": 1, "number": number, "created": "2026-11-23T02:27:00Z", "revision": "r",
            "form": "sif", "source": f"{content}.sif", "sha256": digest, "bytes": 1,
        }  # fmt: skip
        (root / str(number) / "release.json").write_text(json.dumps(record))
    (root / "current").symlink_to("2")
    for odd in ({"source": "\x1b]0;x\x07"}, {"bytes": 10**400}, {"sha256": "\x1b[2J"}):
        (root / "3").mkdir(exist_ok=True)
        (root / "3" / "release.json").write_text(json.dumps(record | {"number": 3} | odd))
        with pytest.raises(PublishError, match=r"release\.json"):
            listed(root)
    shutil.rmtree(root / "3")
    assert listed(root) == {"1": False, "2": True}
    assert publish(root, "c").release == "3"
    assert rollback(root).release == "2"
    assert prune(root).facts["kept"] == [1, 2]


def test_a_copy_that_the_disk_does_not_keep_is_not_published(publish, root, monkeypatch):
    publish(root, "old")
    with monkeypatch.context() as patch:
        patch.setattr("deploy.publishing.folder.os.fsync", lambda file: os.truncate(file, 1))
        with pytest.raises(PublishError, match="differs from what was copied there"):
            publish(root, "new")
    assert served(root) == "old"
    assert listed(root) == {"1": True}
    publish(root, "new")
    assert listed(root) == {"1": False, "2": True}


def test_what_the_kit_did_not_make_is_never_removed(publish, root):
    own = [root / "1" / "thesis.txt", root / "7" / "numl.sif", root / "notes" / "a"]
    for path in own:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    publish(root, *"abc")
    own.append(root / "7" / "release.json")  # a name that others use, too
    own[-1].write_text("mine")
    prune(root)
    assert {path.read_text() for path in own} == {"mine"}
    assert list(listed(root)) == ["3", "4"]
    notes = FolderPlace(root).listing(Look(check=True)).notes
    assert notes == tuple(f"not published by the kit: {name}" for name in ("1", "7", "notes"))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda sif: sif.write_text("other"), "is not what was built"),
        (lambda sif: sif.unlink(), "no such file"),
        (lambda sif: sif.with_name("manifest.json").unlink(), "no manifest.json that names"),
    ],
)
def test_what_was_not_built_here_is_refused(change, cause, publish, root, tmp_path):
    publish(root, "a")
    sif = tmp_path / "dist" / "a.sif"
    change(sif)
    order = Order(Resolved(Deployment()), artefact=sif)
    with pytest.raises(PublishError, match=cause) as raised:
        FolderPlace(root).publish(order, Console("quiet"))
    assert raised.value.remedy is not None
    assert listed(root) == {"1": True}


@pytest.mark.parametrize("ask", [listed, rollback, prune])
def test_a_copy_of_a_bucket_is_refused(ask, publish, root):
    file = File("0" * 64, 1)
    release = Release(1, NOW, "", {"nugraph3": Model(1, {"model.json": file})})
    copy = statement(published_release(None, release, created=NOW, expires=None))
    (root / NAME).write_bytes(copy)
    refused = f"{root}/published.json is a bucket's: release 1 has models, not an image"
    with pytest.raises(PublishError, match=refused):
        ask(root)
    with pytest.raises(PublishError, match=refused):
        publish(root, "a")
    assert (root / NAME).read_bytes() == copy


def test_a_folder_that_is_not_there_and_a_server_are_refused(tmp_path):
    place = FolderPlace(tmp_path / "none")
    for ask in (
        lambda: place.listing(Look()),
        lambda: place.rollback(None, Signing(), dry_run=False),
    ):
        with pytest.raises(PublishError, match="none: no such folder") as caught:
            ask()
        assert caught.value.remedy == "correct it, or publish to it first"
    with pytest.raises(DeploymentError, match="does not say which"):
        place.listing(Look(server="http://127.0.0.1:1"))
