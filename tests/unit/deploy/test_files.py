from pathlib import Path

import pytest

from deploy.files import built_folder, digest_of, sha256_of, write_atomically


def test_a_folder_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def fail_half_way() -> None:
        with built_folder(target) as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_replaces_the_one_before_and_clears_interrupted_builds(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("x")
    (tmp_path / ".out.abc.partial").mkdir()
    with built_folder(target) as folder:
        (folder / "new").write_text("x")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("2")
    one = digest_of([a, b], base=tmp_path)
    assert one == digest_of([b, a], base=tmp_path)
    b.write_text("3")
    assert one != digest_of([a, b], base=tmp_path)


def test_a_files_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file").startswith("ba7816bf")
