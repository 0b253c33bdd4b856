"""Where an image's files are read from, and how mksquashfs is told to."""

import os
from pathlib import Path

import pytest

from deploy.sif.rootfs import layers_of
from deploy.sif.squashfs import COMPRESSIONS, Compression, options, without_epoch


@pytest.fixture
def attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """An image of two layers, as the engine describes it to root on its own machine."""
    for name in ("upper", "lower"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    real = Path.stat

    def owned_by_root(path: Path, **how: bool) -> os.stat_result:
        facts = list(real(path, **how))
        facts[4] = 0
        return os.stat_result(facts)

    monkeypatch.setattr(Path, "stat", owned_by_root)
    data = {"UpperDir": str(tmp_path / "upper"), "LowerDir": str(tmp_path / "lower")}
    return {"GraphDriver": {"Name": "overlay2", "Data": data}}


def test_layers_on_this_machine_are_read_where_they_lie(
    attributes: dict[str, object], tmp_path: Path
) -> None:
    assert layers_of(attributes) == (tmp_path / "upper", tmp_path / "lower")


def test_an_image_of_one_layer_has_no_lower_one(
    attributes: dict[str, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    del attributes["GraphDriver"]["Data"]["LowerDir"]
    assert layers_of(attributes) == (tmp_path / "upper",)


def test_an_ordinary_user_takes_the_export(
    attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert layers_of(attributes) == ()


def test_layers_of_an_engine_elsewhere_are_not_looked_for(
    attributes: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "lower").rmdir()
    assert layers_of(attributes) == ()


@pytest.mark.parametrize("driver", [{"Name": "zfs", "Data": {}}, {"Name": "overlayfs"}, None])
def test_other_ways_of_storing_take_the_export(
    attributes: dict[str, object], driver: object
) -> None:
    attributes["GraphDriver"] = driver
    assert layers_of(attributes) == ()


def test_layers_with_mapped_user_ids_take_the_export(
    attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = os.stat_result((0o40755, 0, 0, 1, 100000, 100000, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)
    monkeypatch.setattr(Path, "stat", lambda _path: mapped)
    assert layers_of(attributes) == ()


def test_everything_that_would_differ_is_given_to_mksquashfs() -> None:
    words = " ".join(options(Compression("zstd", level=5, block=64), epoch=7, room=4096))
    assert words == (
        "-noappend -no-progress -quiet -no-xattrs -no-exports -mkfs-time 7 -all-time 7 "
        "-comp zstd -Xcompression-level 5 -b 64K -offset 4096"
    )


def test_each_compressor_has_its_settings() -> None:
    assert {name: value.name for name, value in COMPRESSIONS.items()} == {
        "zstd": "zstd",
        "gzip": "gzip",
    }


def test_mksquashfs_is_not_told_the_time_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert "SOURCE_DATE_EPOCH" not in without_epoch()
