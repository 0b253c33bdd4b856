import io
import os
import tarfile
from pathlib import Path

import pytest

from deploy.environment.tars import CONTENT_EPOCH, tar_chunks, write_tar

LONG = "a_very_long_name_" * 10


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    (folder / "b" / "empty").mkdir(parents=True)
    (folder / "b" / "run").write_text("#!/bin/sh\n")
    (folder / "b" / "run").chmod(0o700)
    (folder / "a").write_bytes(b"x" * 1000)
    (folder / "a").chmod(0o600)
    (folder / LONG).write_text("long")
    (folder / "link").symlink_to("b/run")
    return folder


def read(folder: Path, root: str = "") -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(b"".join(tar_chunks(folder, root=root))))


def test_everything_is_there_of_one_time_and_readable_for_all(tree):
    with read(tree) as tar:
        assert tar.getnames() == ["a", LONG, "b", "b/empty", "b/run", "link"]
        modes = [oct(member.mode) for member in tar if member.isfile()]
        assert modes == ["0o644", "0o644", "0o755"]
        assert tar.getmember("b").mode == 0o755
        assert tar.getmember("link").linkname == "b/run"
        assert tar.extractfile("a").read() == b"x" * 1000
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in tar} == {(0, 0, "", CONTENT_EPOCH)}


def test_the_same_content_gives_the_same_bytes(tree):
    before = b"".join(tar_chunks(tree))
    os.utime(tree / "a", (1, 1))
    os.utime(tree, (2, 2))
    assert b"".join(tar_chunks(tree)) == before


def test_a_root_brings_the_folders_above_it(tree, tmp_path):
    out = tmp_path / "out.tar"
    write_tar(tree, out, root="opt/numl")
    with tarfile.open(out) as tar:
        assert tar.getnames()[:4] == ["opt", "opt/numl", "opt/numl/a", f"opt/numl/{LONG}"]
