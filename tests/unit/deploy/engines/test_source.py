"""Which .sif a launch takes, and the copy of it that the deployment keeps."""

import hashlib
from pathlib import Path

import pytest

from deploy.artefacts.keys import read_signer
from deploy.engines.kept import check_kept, forget, keep, kept_at
from deploy.engines.source import find_source
from deploy.host.errors import KitError, LaunchError, SignatureError
from tests.unit.deploy.artefacts.test_trust import make_publisher


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def place(tmp_path):
    """A folder with three releases, the third of which serves."""
    publisher = make_publisher(tmp_path)
    for content in (b"one", b"two", b"three"):
        publisher.release(content)
    return publisher


def test_a_published_folder_its_link_and_its_numbers_name_releases(place):
    where = place.place
    for signer in (None, place.signer):
        for named, number in ((where, 3), (where / "current" / "numl.sif", 3),
                              (where / "1" / "numl.sif", 1)):  # fmt: skip
            source = find_source(named, signer, "")
            assert source.path == where / str(number) / "numl.sif"
            assert source.release.number == number
            assert source.trusted == (signer is not None)


def test_a_link_that_somebody_switched_chooses_no_older_release_for_who_verifies(place, tmp_path):
    (place.place / "current").unlink()
    (place.place / "current").symlink_to("1")
    (tmp_path / "mine.sif").symlink_to(place.place / "current" / "numl.sif")
    for named in (place.place / "current" / "numl.sif", tmp_path / "mine.sif"):
        assert find_source(named, place.signer, "").path == place.place / "3" / "numl.sif"
        assert find_source(named, None, "").path == place.place / "1" / "numl.sif"


def test_links_that_lead_to_each_other_are_no_file(place, tmp_path, monkeypatch):
    (tmp_path / "a.sif").symlink_to("b.sif")
    (tmp_path / "b.sif").symlink_to("a.sif")
    for signer in (None, place.signer):
        with pytest.raises(LaunchError, match=r"a\.sif: no such file$"):
            find_source(tmp_path / "a.sif", signer, "build it")
    # Made while it was looked at.
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    with pytest.raises(LaunchError, match=r"more than 40 links$"):
        find_source(tmp_path / "a.sif", place.signer, "build it")


def test_a_release_that_the_statement_does_not_list_is_refused(place):
    folder = place.place / "4"
    folder.mkdir()
    (folder / "numl.sif").write_bytes(b"four")
    with pytest.raises(SignatureError, match="has no release 4"):
        find_source(folder / "numl.sif", place.signer, "")
    assert find_source(folder / "numl.sif", None, "").release is None


def test_a_sandbox_and_a_folder_of_something_else_are_named(place, tmp_path):
    place.publish("0" * 64, form="sandbox")
    with pytest.raises(LaunchError, match="is a sandbox: its files cannot be verified"):
        find_source(place.place, place.signer, "")
    with pytest.raises(LaunchError, match="is a sandbox, which is not started"):
        find_source(place.place, None, "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LaunchError, match=r"folder is a folder, not a \.sif$"):
        find_source(tmp_path / "folder", None, "")
    with pytest.raises(LaunchError, match=r"none\.sif: no such file$") as caught:
        find_source(tmp_path / "none.sif", None, "build it")
    assert caught.value.remedy == "build it"


VERIFIED = digest(b"verified")


@pytest.fixture
def sif(tmp_path):
    file = tmp_path / "numl.sif"
    file.write_bytes(b"verified")
    return file


def test_a_copy_stays_what_it_was_whatever_is_done_to_the_file_it_came_from(sif, tmp_path):
    kept = keep(sif, VERIFIED, tmp_path / "state")
    with sif.open("r+b") as stream:
        stream.write(b"changed!")
    check_kept(kept, VERIFIED)
    sif.unlink()
    check_kept(kept, VERIFIED)
    assert kept == kept_at(tmp_path / "state", VERIFIED)
    assert [*kept.parent.iterdir()] == [kept]


def test_a_file_that_changes_before_it_is_copied_is_not_kept(sif, tmp_path):
    sif.write_bytes(b"another")
    with pytest.raises(LaunchError, match=r"numl\.sif was replaced meanwhile$"):
        keep(sif, VERIFIED, tmp_path / "state")
    assert [*(tmp_path / "state").iterdir()] == []


@pytest.mark.parametrize("harm", ["change", "remove"])
def test_a_copy_that_was_changed_or_removed_is_refused_with_a_remedy(sif, tmp_path, harm):
    kept = keep(sif, VERIFIED, tmp_path / "state")
    if harm == "change":
        kept.chmod(0o700)
        kept.write_bytes(b"changed!")
    else:
        kept.unlink()
    with pytest.raises(KitError) as caught:
        check_kept(kept, VERIFIED)
    assert str(kept) in caught.value.cause
    assert (caught.value.remedy or "").startswith("numlkit down, then numlkit up")


def test_a_new_copy_takes_the_place_of_the_old_one_and_all_can_be_removed(tmp_path):
    folder = tmp_path / "state"
    for content in (b"one", b"two", b"two"):
        (tmp_path / "numl.sif").write_bytes(content)
        keep(tmp_path / "numl.sif", digest(content), folder)
    assert [*folder.iterdir()] == [kept_at(folder, digest(b"two"))]
    forget(folder)
    assert [*folder.iterdir()] == []


def test_a_sif_of_no_published_folder_may_have_a_signer_with_a_pgp_key(tmp_path):
    sif, key = tmp_path / "folder" / "numl.sif", tmp_path / "key.asc"
    sif.parent.mkdir()
    sif.write_bytes(b"sif")
    key.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    assert not find_source(sif, read_signer(key), "").trusted
