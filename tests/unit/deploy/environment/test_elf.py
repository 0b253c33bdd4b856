"""ELF files, with libraries of the kit's own Python as examples."""

import platform
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.environment.elf import drop_symbols, glibc_needed, is_elf


@cache
def library() -> Path:
    """A small compiled module with symbols, as a linker leaves it."""
    return next(Path(sysconfig.get_path("platlib")).glob("mypy/api.*.so"))


def rearranged() -> Path:
    """One that patchelf has worked on."""
    return next((Path(numpy.__file__).parents[1] / "numpy.libs").glob("libscipy_openblas*"))


def test_symbols_are_cut_and_the_module_still_loads(tmp_path):
    copy = Path(shutil.copy(library(), tmp_path))
    before = copy.stat().st_size
    cut = drop_symbols(copy)
    assert cut > 0
    assert copy.stat().st_size == before - cut
    load = f"import ctypes; ctypes.PyDLL({str(copy)!r})"
    subprocess.run([sys.executable, "-c", load], check=True)
    assert glibc_needed([copy]) == glibc_needed([library()])
    content = copy.read_bytes()
    assert drop_symbols(copy) == 0, "there is nothing to cut twice"
    assert copy.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [lambda: rearranged().read_bytes(), lambda: library().read_bytes() + b"weights"],
    ids=["rearranged", "with weights behind it"],
)
def test_a_file_that_is_not_as_a_linker_leaves_it_stays_as_it_is(tmp_path, content):
    copy = tmp_path / "module.so"
    copy.write_bytes(content())
    assert drop_symbols(copy) == 0
    assert copy.read_bytes() == content()


@given(st.integers(0, 64), st.binary(min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_header_with_wrong_numbers_does_no_harm(tmp_path, place, noise):
    path = tmp_path / "wrong.so"
    content = bytearray(library().read_bytes())
    content[place : place + len(noise)] = noise
    path.write_bytes(content)
    drop_symbols(path)
    if is_elf(path):
        glibc_needed([path])


@given(st.binary(max_size=300), st.integers(0, 4096))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_broken_file_is_left_alone(tmp_path, noise, length):
    path = tmp_path / "broken.so"
    content = (library().read_bytes()[:length] + noise) or b"x"
    path.write_bytes(content)
    assert drop_symbols(path) == 0
    assert path.read_bytes() == content
    glibc_needed([path])


def test_the_glibc_of_the_newest_symbol_is_named(tmp_path):
    text = tmp_path / "text.py"
    text.write_text("GLIBC_9.99")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(library())
    assert not is_elf(text)
    assert glibc_needed(tmp_path.iterdir()) == (0, 0)
    needed = glibc_needed([library(), text])
    assert (2, 0) < needed <= tuple(map(int, platform.libc_ver()[1].split(".")))


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + b"\0" * 60])
def test_what_is_not_a_64_bit_elf_file_is_none(content, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert not is_elf(path)
