"""Conda packages as py-rattler itself reads, solves and installs them."""

import hashlib
import io
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.packing.channel import ChannelError, find_in_channel, install, solve_locally
from deploy.packing.conda_package import (
    PLACEHOLDER,
    SUBDIR,
    PackageName,
    _StoredZstd,
    write_package,
    write_repodata,
)

NAME = PackageName("pypi-some-thing", "1.0+cpu", "py311_0a1b2c3d")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def installed(folder: Path, tree: Path, prefix: str | None = None) -> Path:
    channel, target = folder / "channel", folder / "prefix"
    write_package(NAME, [], tree, channel)
    write_repodata(channel, [NAME])
    records = solve_locally(channel, [NAME.spec])
    install(records, target, prefix=prefix or str(target), packages=folder / "unpacked")
    return target


def test_a_package_is_installed_with_contents_modes_and_links(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "run").write_bytes(b"\0" * 300_000 + b"end")
    (tree / "bin" / "run").chmod(0o700)
    (tree / "text é").write_text("x")
    (tree / "empty").touch()
    (tree / "bin" / "link").symlink_to("run")
    prefix = installed(tmp_path, tree)
    assert (prefix / "bin" / "run").read_bytes() == (tree / "bin" / "run").read_bytes()
    assert os.access(prefix / "bin" / "run", os.X_OK)
    assert (prefix / "text é").stat().st_mode & 0o777 == 0o644
    assert (prefix / "bin" / "link").readlink() == Path("run")
    record = json.loads((prefix / "conda-meta" / f"{NAME.stem}.json").read_text())
    assert record["version"] == NAME.version
    assert (
        record["sha256"]
        == hashlib.sha256((tmp_path / "channel" / SUBDIR / NAME.file_name).read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("binary", [False, True])
def test_files_that_name_the_prefix_name_the_final_one(tmp_path: Path, binary: bool) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    end = b"\0rest\0" if binary else b"rest\n"
    (tree / "file").write_bytes(f"{PLACEHOLDER}/lib".encode() + end)
    content = (installed(tmp_path, tree, prefix="/final/place") / "file").read_bytes()
    assert content.startswith(b"/final/place/lib")
    assert PLACEHOLDER.encode() not in content
    assert (len(content) == (tree / "file").stat().st_size) is binary


def test_the_placeholder_has_room_for_the_paths_that_conda_allows() -> None:
    assert 200 < len(PLACEHOLDER) <= 255


@given(st.dictionaries(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.binary(max_size=400_000)))
@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_content_survives(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "tree").mkdir()
    for name, content in files.items():
        (folder / "tree" / name).write_bytes(content)
    prefix = installed(folder, folder / "tree")
    assert {p.name: p.read_bytes() for p in prefix.iterdir() if p.name in files} == files


def test_the_same_tree_makes_the_same_package_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("a")
    digests = set()
    for number, time in enumerate((1_000_000_000, 1_700_000_000)):
        os.utime(tree / "a", (time, time))
        monkeypatch.setattr("time.time", lambda time=time: time)
        write_package(NAME, ["python"], tree, tmp_path / str(number))
        path = tmp_path / str(number) / SUBDIR / NAME.file_name
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("size", [0, 1, 131071, 131072, 131073, 262144, 1_000_000])
@pytest.mark.parametrize("chunk", [1000, 131072, 10**7])
def test_stored_zstd_has_the_blocks_that_its_format_wants(size: int, chunk: int) -> None:
    content = os.urandom(size)
    stream = io.BytesIO()
    with _StoredZstd(stream) as writer:
        for start in range(0, size, chunk):
            writer.write(content[start : start + chunk])
        assert writer.tell() == size
    assert _blocks(stream.getvalue()) == content


def _blocks(frame: bytes) -> bytes:
    """A reader of RFC 8878 for raw blocks."""
    assert frame[:6] == b"\x28\xb5\x2f\xfd\x00\x38"
    place, content, last = 6, b"", False
    while not last:
        header = int.from_bytes(frame[place : place + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        assert kind == 0
        assert size <= 131072
        content += frame[place + 3 : place + 3 + size]
        place += 3 + size
    assert place == len(frame)
    return content


def test_packages_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    write_package(NAME, ["python 3.11.*"], tree, tmp_path / "channel")
    write_repodata(tmp_path / "channel", [NAME])
    with pytest.raises(ChannelError, match="do not go together") as caught:
        solve_locally(tmp_path / "channel", [NAME.spec])
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize("url", ["file:///nonexistent/channel", "http://127.0.0.1:9/channel"])
def test_a_channel_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(ChannelError, match=f"conda channel {url}") as caught:
        find_in_channel(url, "3.11")
    assert "\n" not in caught.value.cause


def test_a_channel_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.packing.channel._SECONDS", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/channel"
        with pytest.raises(ChannelError, match="does not answer"):
            find_in_channel(url, "3.11")


def test_a_channel_with_another_python_only_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    python = PackageName("python", "3.12.1", "0")
    write_package(python, [], tree, tmp_path / "channel")
    write_repodata(tmp_path / "channel", [python])
    with pytest.raises(ChannelError, match="python"):
        find_in_channel((tmp_path / "channel").as_uri(), "3.11")
