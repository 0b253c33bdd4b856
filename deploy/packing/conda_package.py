"""Write conda packages, and the local channel that py-rattler installs them from.

Sources of the formats: conda's CEP on the ``.conda`` format (a zip archive with two
tar archives in zstd), its documentation of ``info/paths.json`` and of ``repodata.json``.
"""

from __future__ import annotations

import io
import json
import mmap
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from deploy.files import sha256_of

SUBDIR: Final = "linux-64"
PLACEHOLDER = "/opt/numlkit_prefix" + "_placehold" * 20
"""Stands for the prefix in files that name it; not longer than conda's own, 255."""

_BLOCK = 128 * 1024  # the largest that zstd knows


@dataclass(frozen=True)
class PackageName:
    """What names a conda package.

    Attributes:
        name: Its name.
        version: Its version.
        build: Tells apart packages of one version.
    """

    name: str
    version: str
    build: str

    @property
    def stem(self) -> str:
        """Its file name without extension."""
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def file_name(self) -> str:
        """Its file name."""
        return f"{self.stem}.conda"

    @property
    def spec(self) -> str:
        """What a solver is asked for."""
        return f"{self.name} =={self.version} {self.build}"


def write_package(package: PackageName, depends: Iterable[str], tree: Path, channel: Path) -> None:
    """Write the files of ``tree`` as a conda package into ``channel``.

    Files that hold :data:`PLACEHOLDER` are declared, so that an installation puts
    its prefix there. Nothing is compressed: the package is read once, on this machine.

    Args:
        package: Its name.
        depends: What it needs, in conda's words.
        tree: The files as they lie in a prefix.
        channel: The channel's folder. A record for ``repodata.json`` is left there too.
    """
    index = {
        "name": package.name,
        "version": package.version,
        "build": package.build,
        "build_number": 0,
        "depends": sorted(depends),
        "subdir": SUBDIR,
    }
    files = sorted(p for p in tree.rglob("*") if p.is_symlink() or not p.is_dir())
    paths = {"paths": [_describe(path, tree) for path in files], "paths_version": 1}
    target = channel / SUBDIR / package.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        # A ZipInfo of 1980, where a mere name would be given the time of day.
        metadata = json.dumps({"conda_pkg_format_version": 2})
        archive.writestr(zipfile.ZipInfo("metadata.json"), metadata)
        content = zipfile.ZipInfo(f"pkg-{package.stem}.tar.zst")
        with archive.open(content, "w", force_zip64=True) as stream:
            _write_tar(stream, ((p.relative_to(tree).as_posix(), p) for p in files))
        about = {"info/index.json": index, "info/paths.json": paths}
        with archive.open(zipfile.ZipInfo(f"info-{package.stem}.tar.zst"), "w") as stream:
            _write_tar(stream, ((n, json.dumps(c).encode()) for n, c in about.items()))
    record = {**index, "sha256": sha256_of(partial), "size": partial.stat().st_size}
    partial.rename(target)
    target.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")


def write_repodata(channel: Path, packages: Iterable[PackageName]) -> None:
    """Write the index that makes a folder with ``packages`` a channel."""
    records: dict[str, Any] = {}
    for package in packages:
        path = (channel / SUBDIR / package.file_name).with_suffix(".json")
        records[package.file_name] = json.loads(path.read_text(encoding="utf-8"))
    for subdir, content in ((SUBDIR, records), ("noarch", {})):
        repodata = {
            "info": {"subdir": subdir},
            "packages": {},
            "packages.conda": content,
            "repodata_version": 1,
        }
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        (channel / subdir / "repodata.json").write_text(json.dumps(repodata), encoding="utf-8")


def _describe(path: Path, tree: Path) -> Mapping[str, Any]:
    """Return the entry of ``path`` in ``info/paths.json``."""
    entry: dict[str, Any] = {"_path": path.relative_to(tree).as_posix()}
    if path.is_symlink():
        return {**entry, "path_type": "softlink"}
    size = path.stat().st_size
    entry |= {"path_type": "hardlink", "sha256": sha256_of(path), "size_in_bytes": size}
    mode = _placeholder_mode(path) if size else None
    if mode is not None:
        entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": mode}
    return entry


def _placeholder_mode(path: Path) -> str | None:
    """Tell whether and how :data:`PLACEHOLDER` is to be replaced in a file."""
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        if content.find(PLACEHOLDER.encode()) < 0:
            return None
        return "text" if content.find(b"\0") < 0 else "binary"


def _write_tar(stream: IO[bytes], members: Iterable[tuple[str, Path | bytes]]) -> None:
    with (
        _StoredZstd(stream) as zstd,
        tarfile.open(fileobj=zstd, mode="w") as tar,
    ):
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mode = 0o644
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            elif content.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, str(content.readlink())
                tar.addfile(info)
            else:
                status = content.stat()
                info.size = status.st_size
                info.mode = 0o755 if status.st_mode & 0o100 else 0o644
                with content.open("rb") as source:
                    tar.addfile(info, source)


class _StoredZstd(io.RawIOBase):
    """A zstd frame of uncompressed blocks (RFC 8878, 3.1.1).

    Python has no zstd before 3.14, and the other format of conda packages is bzip2.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._pending = bytearray()
        self._position = 0
        window = 7 << 3  # 2 ** (10 + 7) bytes: one block
        self._stream.write(b"\x28\xb5\x2f\xfd" + bytes([0, window]))

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        self._pending += data
        self._position += len(data)
        whole = (len(self._pending) - 1) // _BLOCK * _BLOCK
        if whole > 0:
            self._stream.write(b"".join(_blocks(self._pending[:whole])))
            del self._pending[:whole]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.write(_block_header(len(self._pending), last=True) + self._pending)
        super().close()


def _blocks(data: bytearray) -> Iterator[bytes]:
    header = _block_header(_BLOCK, last=False)
    view = memoryview(bytes(data))
    for start in range(0, len(data), _BLOCK):
        yield header
        yield bytes(view[start : start + _BLOCK])


def _block_header(size: int, *, last: bool) -> bytes:
    return (size << 3 | int(last)).to_bytes(3, "little")
