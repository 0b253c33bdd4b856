"""The wheel of ``numl_serving``, built by the real pip without network."""

import importlib.metadata
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy.environment import serving
from deploy.environment.serving import serving_digest, serving_wheel
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import sha256_of
from deploy.host.paths import ENVIRONMENT_SOURCE, cache_folder
from tests.environments import ignore
from tests.kit import lacking
from tests.programs import write_program


@pytest.fixture(scope="module")
def cache():
    """The user's own, which has the wheel for other tests: it takes a while to compile."""
    serving_wheel(cache_folder(), ENVIRONMENT_SOURCE, ignore)
    return cache_folder()


@pytest.mark.slow
def test_the_wheel_holds_what_serves_and_is_built_once(cache):
    said: list[str] = []
    wheel = serving_wheel(cache, ENVIRONMENT_SOURCE, said.append)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        library = archive.read("numl_serving/libnuml.so")
    # C's library is all it needs: where there is no compiler, C++'s would first have to be made.
    assert b"libc.so.6" in library
    assert b"c++" not in library
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert {"numl_serving/triton.py", "numl_serving/libnuml.so"} <= {*names}
    assert not [name for name in names if name.startswith("numl_demo")]
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]
    assert said == []


@pytest.mark.slow
def test_the_same_source_gives_the_same_bytes_wherever_it_lies_and_stays_as_it_was(cache, tmp_path):
    # Copied file by file, with the time of now.
    ignored = shutil.ignore_patterns("__pycache__")
    source = shutil.copytree(
        ENVIRONMENT_SOURCE, tmp_path / "source", ignore=ignored, copy_function=shutil.copyfile
    )
    before = sorted(source.rglob("*"))
    first = serving_wheel(cache, ENVIRONMENT_SOURCE, ignore)
    second = serving_wheel(tmp_path / "cache", source, ignore)
    assert first.name == second.name
    assert sha256_of(first) == sha256_of(second)
    assert sorted(source.rglob("*")) == before


def test_the_library_is_for_aarch64_too():
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        lacking("no compiler for aarch64 (apt-get install g++-aarch64-linux-gnu)")
    files = importlib.metadata.files("cmeel-qhull") or []
    qhull = next(file for file in files if file.match("libqhull_r/qhull_ra.h")).locate()
    folders = (f"-I{Path(str(qhull)).parents[depth]}" for depth in (0, 1))
    words = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DNUML_LEVEL=baseline"]
    sources = sorted((ENVIRONMENT_SOURCE / "native").glob("*.cpp"))
    told = subprocess.run(
        [compiler, *words, *folders, *sources], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")


def test_every_source_of_the_native_library_counts(tmp_path):
    names = ["pyproject.toml", "setup.py", "native/a.cpp", "native/a.h", "native/a.map"]
    names += ["numl_serving/a.py", "numl_serving/py.typed"]
    digests = {serving_digest(tmp_path)}
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        digests.add(serving_digest(tmp_path))
    assert len(digests) == len(names) + 1
    (tmp_path / "numl_serving" / "a.cpython-311.pyc").touch()
    assert serving_digest(tmp_path) in digests


def test_a_source_that_cannot_be_built_is_named(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").write_text("[project]\nversion = 'x'\n")
    with pytest.raises(EnvironmentSetupError, match="pip cannot build numl_serving: ") as caught:
        serving_wheel(tmp_path / "cache", tmp_path / "source", ignore)
    assert "\n" not in caught.value.cause
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_each_compiler_has_a_wheel_of_its_own_and_a_host_without_takes_what_there_is(
    monkeypatch, tmp_path
):
    built: list[Path] = []

    def build(_source: Path, folder: Path) -> None:
        built.append(folder)
        (folder / "numl_serving.whl").touch()

    monkeypatch.setattr(serving, "_build", build)
    for version in ("12.2.0", "13.1.0"):
        write_program(tmp_path / version / "some-compiler", f"echo some-compiler {version}")
    wheels = []
    for command in ("12.2.0", "13.1.0", "12.2.0"):
        monkeypatch.setenv("CXX", "some-compiler -O2")
        monkeypatch.setenv("PATH", str(tmp_path / command), prepend=":")
        wheels.append(serving_wheel(tmp_path / "cache", ENVIRONMENT_SOURCE, ignore))
    assert len(built) == 2
    assert wheels[0] == wheels[2] != wheels[1]
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert serving_wheel(tmp_path / "cache", ENVIRONMENT_SOURCE, ignore) in wheels
