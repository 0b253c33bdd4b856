"""Accidents of a folder: killed commands, other users, full disks, and what others put there."""

import errno
import os
from datetime import timedelta
from unittest.mock import Mock

import pytest

from deploy.host.errors import PublishError, SignatureError
from deploy.publishing.folder import FolderPlace
from deploy.publishing.lock import alone_in
from deploy.publishing.place import Look, Signing
from tests.unit.deploy.publishing.signing import pair, public
from tests.unit.deploy.publishing.test_folder import killed_anywhere, prune, rollback, served

DAY = timedelta(days=1)
LEFT = ".numlkit.2.abcdefgh.partial"


def test_a_rollback_that_is_killed_between_statement_and_link_is_finished_by_the_next(
    publish, tmp_path
):
    interrupted = 0
    for root, _ in killed_anywhere(tmp_path, lambda root: publish(root, *"abc"), rollback):
        if FolderPlace(root).listing(Look()).problems:
            interrupted += 1
            if interrupted == 1:  # a prune removes nothing that nodes start
                prune(root)
                assert served(root) == "b"
                continue
            rollback(root)
            assert served(root) == "b"
            assert FolderPlace(root).listing(Look()).problems == ()
            rollback(root)
            assert served(root) == "a"
    assert interrupted > 1


def test_what_finishes_a_killed_rollback_renews_it_where_that_is_asked_for(publish, root, tmp_path):
    key = pair(tmp_path, "cosign")
    publish(root, *"ab", sign=key)
    place = FolderPlace(root)
    place.rollback(None, Signing(key, -DAY), dry_run=False)
    (root / "current").unlink()
    (root / "current").symlink_to("2")
    with pytest.raises(SignatureError, match="has expired"):
        place.listing(Look(verify=public(key)))
    done = place.rollback(None, Signing(key, DAY), dry_run=False)
    assert any("its signature expires" in line for line in done.lines)
    assert place.listing(Look(verify=public(key))).problems == ()
    assert served(root) == "a"


def test_a_prune_that_is_killed_is_repeated_and_leaves_no_file_of_what_it_removes(
    publish, tmp_path
):
    steps = 0
    for root, killed in killed_anywhere(tmp_path, lambda root: publish(root, *"abc"), prune):
        steps += killed
        prune(root)
        left = {path.parent.name for path in root.rglob("*") if path.is_file()}
        assert left == {root.name, "2", "3"}
    assert steps > len("abc")


def test_what_cannot_be_removed_is_not_said_to_be_removed(publish, root, monkeypatch):
    publish(root, *"abc")
    monkeypatch.setattr("deploy.publishing.folder.remove_folder", lambda _: None)
    with pytest.raises(PublishError, match=f"{root}/1 cannot be removed whole") as raised:
        prune(root)
    assert raised.value.remedy == f"as its owner: rm -r {root}/1"


def test_other_users_can_read_all_of_a_place_whatever_the_publishers_umask(publish, root, tmp_path):
    before = os.umask(0o077)
    try:
        publish(root, "a", sign=pair(tmp_path, "ours"))
    finally:
        os.umask(before)
    folders = {path.name: path.stat().st_mode & 0o777 for path in root.iterdir() if path.is_dir()}
    assert folders == {"1": 0o755, "current": 0o755, "signatures": 0o755}


def test_a_file_with_the_name_of_the_link_and_a_dot_stays(publish, root):
    (root / ".current").write_text("mine")
    publish(root, "a")
    assert (root / ".current").read_text() == "mine"


def test_a_dry_run_leaves_what_a_killed_command_has_left(publish, root):
    publish(root, *"abc")
    (root / LEFT).mkdir()
    publish(root, "d", dry_run=True)
    rollback(root, dry_run=True)
    prune(root, dry_run=True)
    assert (root / LEFT).is_dir()
    rollback(root)
    assert not (root / LEFT).exists()


def test_nothing_is_removed_where_a_link_for_the_signatures_leads(publish, root, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / LEFT).write_text("a build at work")
    (root / "signatures").symlink_to(tmp_path / "theirs")
    publish(root, "a")
    assert (tmp_path / "theirs" / LEFT).is_file()


def test_without_its_statement_a_place_keeps_the_release_that_serves(publish, root):
    publish(root, *"ab")
    (root / "published.json").unlink()
    assert publish(root, "c").release == "3"
    assert (root / "2" / "numl.sif").read_text() == "b"
    assert served(root) == "c"


def test_a_number_that_leads_nowhere_is_not_a_releases(publish, root):
    (root / "1").symlink_to("nowhere")
    assert publish(root, "a").release == "2"


def test_a_release_of_any_length_is_not_there(publish, root):
    publish(root, "a")
    with pytest.raises(PublishError, match="there is no release 9"):
        rollback(root, "9" * 5000)


def test_a_folder_of_others_with_a_number_written_otherwise_stays(publish, root):
    (root / "01").mkdir()
    publish(root, *"abc")
    assert prune(root).lines == ("removed release 1",)
    assert (root / "01").is_dir()


def test_a_lock_that_cannot_be_written_is_not_left(root, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("deploy.publishing.lock.Owner.model_dump_json", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"), alone_in(root):
        pass
    assert not any(root.iterdir())


def test_a_folder_is_not_blamed_for_a_state_folder_that_cannot_be_written_to(
    publish, root, tmp_path
):
    (tmp_path / "state").write_text("")
    with pytest.raises(OSError, match="Not a directory") as raised:
        publish(root, "a", sign=pair(tmp_path, "ours"))
    assert str(tmp_path / "state") in raised.value.filename
