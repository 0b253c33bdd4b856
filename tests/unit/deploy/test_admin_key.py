from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from deploy.errors import DeploymentError
from deploy.server.admin_key import keep_key, make_key, read_key
from deploy.server.keyed_start import KEY_PATTERN
from deploy.server.keyed_start import read_key as launcher_s_read_key


def test_the_file_is_at_no_time_open_to_others(tmp_path: Path) -> None:
    """Looked at with every call of a function, while the umask takes nothing away."""
    modes = []

    def look(*_event: object) -> None:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    before = os.umask(0)
    sys.setprofile(look)
    try:
        make_key(tmp_path / "admin.key")
    finally:
        sys.setprofile(None)
        os.umask(before)
    assert set(modes) == {0o600}


def test_each_key_is_another_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    first, second = make_key(path), make_key(path)
    assert first != second
    assert read_key(path) == second
    assert list(tmp_path.iterdir()) == [path]


def test_the_launcher_accepts_what_is_made(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    key = make_key(path)
    assert re.fullmatch(KEY_PATTERN, key)
    assert launcher_s_read_key(str(path)) == key


@pytest.mark.parametrize("text", ["", "head: cannot open '/tmp/admin.key'", "short\n", "a" * 200])
def test_only_a_key_is_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    kept = keep_key(path, text)
    assert kept == (text if path.exists() else None)
    assert path.exists() == (len(text) == 200)


def test_a_key_that_is_kept_is_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    assert keep_key(path, "k" * 64 + "\n") == read_key(path) == "k" * 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_key_is_told_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError) as caught:
        read_key(tmp_path / "admin.key")
    assert caught.value.cause == f"{tmp_path}/admin.key: No such file or directory"
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"a" * 20 + b"\n" + b"b" * 20])
def test_a_file_that_holds_no_key_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_bytes(content)
    with pytest.raises(DeploymentError, match="holds no key"):
        read_key(path)
