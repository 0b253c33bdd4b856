"""The wheel of ``numl_serving``, built by the real pip without network."""

import shutil
import zipfile
from pathlib import Path

import pytest

from deploy.environment.serving import serving_digest, serving_wheel
from deploy.errors import EnvironmentSetupError
from deploy.files import sha256_of
from deploy.paths import ENVIRONMENT_SOURCE


def ignore(_text: str) -> None:
    pass


def test_the_wheel_is_built_once_without_a_trace_in_the_checkout(tmp_path: Path) -> None:
    before = sorted(ENVIRONMENT_SOURCE.rglob("*"))
    said: list[str] = []
    wheel = serving_wheel(tmp_path, ENVIRONMENT_SOURCE, said.append)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "numl_serving/triton.py" in names
    assert not [name for name in names if name.startswith("numl_demo")]
    assert sorted(ENVIRONMENT_SOURCE.rglob("*")) == before
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]
    assert serving_wheel(tmp_path, ENVIRONMENT_SOURCE, said.append) == wheel
    assert said == ["building numl_serving"]


def test_the_same_source_gives_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    # Copied file by file, with the time of now.
    other = shutil.copytree(
        ENVIRONMENT_SOURCE, tmp_path / "source", ignore=ignored, copy_function=shutil.copyfile
    )
    first = serving_wheel(tmp_path / "first cache", ENVIRONMENT_SOURCE, ignore)
    second = serving_wheel(tmp_path / "second cache", other, ignore)
    assert first.name == second.name
    assert sha256_of(first) == sha256_of(second)


def test_every_source_of_the_native_library_counts(tmp_path: Path) -> None:
    names = ["pyproject.toml", "setup.py", "native/a.cpp", "native/a.h", "numl_serving/a.py"]
    digests = {serving_digest(tmp_path)}
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        digests.add(serving_digest(tmp_path))
    assert len(digests) == len(names) + 1
    (tmp_path / "numl_serving" / "a.cpython-311.pyc").touch()
    assert serving_digest(tmp_path) in digests


def test_a_source_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").write_text("[project]\nversion = 'x'\n")
    with pytest.raises(EnvironmentSetupError, match="pip cannot build numl_serving: ") as caught:
        serving_wheel(tmp_path / "cache", tmp_path / "source", ignore)
    assert "\n" not in caught.value.cause
    assert not list((tmp_path / "cache").rglob("*.whl"))
