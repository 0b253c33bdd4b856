"""Wheels as files of a prefix: what lands where, and what is refused."""

import os
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.errors import EnvironmentSetupError
from deploy.packing.wheel_tree import WheelName, unpack_wheel

SITE = "lib/python3.11/site-packages"


def wheel(
    folder: Path, files: Mapping[str, bytes | str], modes: Mapping[str, int] = MappingProxyType({})
) -> Path:
    path = folder / "Some_Thing-1.0+cpu-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = modes.get(name, stat.S_IFREG | 0o600) << 16
            archive.writestr(info, content)
    return path


def unpacked(folder: Path, path: Path) -> dict[str, bytes]:
    prefix = folder / "prefix"
    unpack_wheel(path, prefix, "3.11")
    return {
        file.relative_to(prefix).as_posix(): file.read_bytes()
        for file in prefix.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("name", "distribution", "version"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "torch", "2.13.0+cpu"),
        ("typing_extensions-4.16.0-py3-none-any.whl", "typing-extensions", "4.16.0"),
        ("MarkupSafe-3.0.4-2-cp311-cp311-linux_x86_64.whl", "markupsafe", "3.0.4"),
    ],
)
def test_a_wheel_is_named_as_conda_does(name: str, distribution: str, version: str) -> None:
    assert WheelName.of(Path(name)) == WheelName(distribution, version)


def test_every_part_of_a_wheel_lands_where_an_installation_puts_it(tmp_path: Path) -> None:
    data = "some_thing-1.0.data"
    path = wheel(
        tmp_path,
        {
            "some_thing/__init__.py": "1",
            f"{data}/purelib/pure.py": "2",
            f"{data}/platlib/plat.so": "3",
            f"{data}/scripts/run": "#!/bin/bash\n",
            f"{data}/data/lib/libx.so.1": "4",
            f"{data}/headers/x.h": "5",
            "some_thing-1.0.dist-info/METADATA": "6",
            "some_thing-1.0.dist-info/RECORD": "7",
            "some_thing/tests/test_x.py": "8",
        },
    )
    assert unpacked(tmp_path, path) == {
        f"{SITE}/some_thing/__init__.py": b"1",
        f"{SITE}/pure.py": b"2",
        f"{SITE}/plat.so": b"3",
        "bin/run": b"#!/bin/bash\n",
        "lib/libx.so.1": b"4",
        f"{SITE}/some_thing-1.0.dist-info/METADATA": b"6",
    }


def test_files_are_readable_for_all_and_programs_stay_programs(tmp_path: Path) -> None:
    program = {"a/program": stat.S_IFREG | 0o700}
    path = wheel(tmp_path, {"a/program": "", "a/text": "", "a-1.data/scripts/x": ""}, program)
    unpacked(tmp_path, path)
    modes = {
        name: stat.S_IMODE((tmp_path / "prefix" / name).stat().st_mode)
        for name in (f"{SITE}/a/program", f"{SITE}/a/text", "bin/x")
    }
    assert list(modes.values()) == [0o755, 0o644, 0o755]


@pytest.mark.parametrize("kind", ["entry point", "script"])
def test_a_script_runs_the_python_beside_it_wherever_it_is_moved(tmp_path: Path, kind: str) -> None:
    files = {"mod.py": "class A:\n  @staticmethod\n  def main(): import sys; print(sys.argv[1:])\n"}
    if kind == "entry point":
        files["x-1.dist-info/entry_points.txt"] = "[console_scripts]\nrun-it = mod:A.main [extra]\n"
    else:
        files["x-1.data/scripts/run-it"] = "#!python\nfrom mod import A\nA.main()\n"
    unpacked(tmp_path, wheel(tmp_path, files))
    moved = (tmp_path / "prefix").rename(tmp_path / "moved to")
    assert str(tmp_path) not in (moved / "bin" / "run-it").read_text()
    (moved / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "link").symlink_to(moved / "bin" / "run-it")
    for command in (moved / "bin" / "run-it", tmp_path / "link"):
        done = subprocess.run(
            [str(command), "a b", "c"],
            capture_output=True, text=True, check=False,
            env={"PATH": os.defpath, "PYTHONPATH": str(moved / SITE)},
        )  # fmt: skip
        assert done.stdout == "['a b', 'c']\n", done.stderr


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../../evil", "x.data/data/../../evil", "a\\..\\b"]
)
def test_a_wheel_that_leaves_its_prefix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EnvironmentSetupError, match="not a usable wheel"):
        unpacked(tmp_path, wheel(tmp_path, {name: "x"}))
    assert not list(tmp_path.rglob("evil"))


PARTS = st.sampled_from(["..", ".", "", "a", "b.py", "x.data", "data", "scripts", "purelib", "é"])


@given(st.lists(PARTS, min_size=1, max_size=6).map("/".join).filter(lambda n: not n.endswith("/")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_member_is_called_nothing_is_written_outside(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.mktemp("wheel")
    path = wheel(folder, {name: "x"})
    with suppress(EnvironmentSetupError):
        unpack_wheel(path, folder / "prefix", "3.11")
    outside = {p for p in folder.rglob("*") if p.is_file()} - {path}
    assert all((folder / "prefix") in p.parents for p in outside)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}\.py", fullmatch=True), st.binary(max_size=99)
    ).filter(lambda d: not any(PurePosixPath(a) in PurePosixPath(b).parents for a in d for b in d))
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_contents_survive(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("wheel")
    expected = {f"{SITE}/{name}": content for name, content in files.items()}
    left_out = {name for name in expected if "/tests/" in name}
    got = unpacked(folder, wheel(folder, files))
    assert got == {name: expected[name] for name in expected.keys() - left_out}


@pytest.mark.parametrize("damage", ["not a zip", "cut off", "wrong checksum", "not deflate"])
def test_a_broken_wheel_is_named(tmp_path: Path, damage: str) -> None:
    path = wheel(tmp_path, {"a.py": b"0123456789" * 100})
    content = path.read_bytes()
    broken = {
        "not a zip": b"hello",
        "cut off": content[: len(content) // 2],
        "wrong checksum": content.replace(b"5", b"6", 1),
        "not deflate": content.replace(
            b"PK\x03\x04\x14\0\0\0\0\0", b"PK\x03\x04\x14\0\0\0\x08\0"
        ).replace(b"PK\x01\x02\x14\x03\x14\0\0\0\0\0", b"PK\x01\x02\x14\x03\x14\0\0\0\x08\0"),
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(EnvironmentSetupError, match=r"any\.whl: not a usable wheel") as caught:
        unpack_wheel(path, tmp_path / "prefix", "3.11")
    assert caught.value.remedy == f"rm {path} and repeat the command"


@pytest.mark.parametrize(
    "text", ["[console_scripts]\nx = nothing\n", "[console_scripts]\n../x = a:b\n"]
)
def test_a_broken_entry_point_is_named(tmp_path: Path, text: str) -> None:
    path = wheel(tmp_path, {"x-1.dist-info/entry_points.txt": text})
    with pytest.raises(EnvironmentSetupError, match=r"x-1\.dist-info: entry point .* is broken"):
        unpacked(tmp_path, path)


def test_a_large_member_is_never_held_in_memory(tmp_path: Path) -> None:
    """The wheels of CUDA have members of a gigabyte."""
    path = tmp_path / "big-1-py3-none-any.whl"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("big.so", "w") as stream,
    ):
        for _ in range(64):
            stream.write(bytes(1024 * 1024))
    tracemalloc.start()
    unpack_wheel(path, tmp_path / "prefix", "3.11")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "prefix" / SITE / "big.so").stat().st_size == 64 * 1024 * 1024
    assert peak < 16 * 1024 * 1024
