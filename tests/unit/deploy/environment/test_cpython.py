"""A Python that is copied into a prefix, with the libraries that it was built with."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.environment.cpython import lay_out
from deploy.environment.interpreter import Interpreter
from tests.kit import lacking
from tests.programs import write_program


def library(path: Path, *needed: Path) -> Path:
    """Compile a shared library that holds its path, and looks for others as conda-forge's do."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        lacking("no C++ compiler (apt-get install g++)")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".cpp")
    source.write_text(f'extern "C" const char place[] = "{path}";')
    way = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../.."
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", way, "-o", path, source]
    subprocess.run([*command, "-Wl,--no-as-needed", *needed], check=True)
    source.unlink()
    return path


@pytest.fixture
def python(tmp_path):
    """The skeleton of a Python as conda-forge's: its module finds a library relative to itself."""
    prefix = tmp_path / "conda"
    stdlib = prefix / "lib" / "python3.11"
    thing = library(prefix / "lib" / "libthing.so.1")
    library(stdlib / "lib-dynload" / "_thing.so", thing)
    (stdlib / "os.py").write_text(f"prefix = {str(prefix)!r}\n")
    answer = json.dumps([str(stdlib), str(stdlib), str(prefix), "lib"])
    program = write_program(prefix / "bin" / "python3.11", f"echo '{answer}'")
    return Interpreter(program, "3.11.9", library(prefix / "lib" / "libpython3.11.so.1.0"))


def test_a_module_keeps_the_library_of_its_own_python_not_the_hosts(python, tmp_path, monkeypatch):
    host, prefix = tmp_path / "host", tmp_path / "prefix"
    library(host / "libthing.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(host))
    prefix.mkdir()
    lay_out(python, prefix)
    copied = (prefix / "lib" / "libthing.so.1").read_bytes()
    assert f"{python.libpython.parent}/libthing.so.1".encode() in copied
    assert str(host).encode() not in copied
