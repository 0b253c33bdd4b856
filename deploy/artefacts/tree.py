"""What layers amount to: the files of an image, without unpacking it anywhere.

Links are followed in the tree alone, never on this host, and what climbs out of it is refused.
Whiteouts: https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO

from deploy.artefacts.layers import Layer
from deploy.host.errors import BuildError

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_LINKS = 40
_SMALL = 1 << 20  # bytes

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A file, whose bytes are at ``content``; or a symbolic link to ``target``; or a folder."""

    content: Path | None = None
    target: str = ""


@dataclass
class Tree:
    """Files by their paths' parts; contents that layers bring are kept in the folder ``kept``."""

    kept: Path
    entries: dict[Parts, Entry] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def add(self, layer: Layer, wanted: Callable[[Parts], bool]) -> None:
        """Lay a layer over the tree; of its files only those that are ``wanted`` are kept."""
        new: dict[Parts, Entry] = {}
        with layer.whole().open("rb") as stream:
            for member, parts, tar in members(stream, layer):
                name = parts[-1] if parts else ""
                if name == _OPAQUE:
                    self._remove(parts[:-1], itself=False)
                elif name.startswith(_WHITEOUT):
                    self._remove((*parts[:-1], name.removeprefix(_WHITEOUT)))
                elif member.isdir():
                    new[parts] = Entry()
                elif member.issym():
                    new[parts] = Entry(target=member.linkname)
                elif member.islnk() and wanted(parts):
                    linked = split(member.linkname, layer)
                    entry = new.get(linked) or self.entries.get(linked)
                    if entry is None:
                        what = f"{'/'.join(parts)} is a hard link to {member.linkname}"
                        cause = f"layer {layer.digest[:19]}...: {what}, which is not there"
                        raise BuildError(cause, "take the image from another registry")
                    new[parts] = entry
                elif member.isreg() and wanted(parts):
                    new[parts] = Entry(self._keep(tar.extractfile(member)))
        for parts, entry in new.items():
            if entry != Entry() and parts in self.entries:
                self._remove(parts)
            self.entries[parts] = entry

    def _keep(self, content: IO[bytes] | None) -> Path:
        assert content is not None
        self.kept.mkdir(parents=True, exist_ok=True)
        place = self.kept / str(next(self._numbers))
        with place.open("wb") as target:
            shutil.copyfileobj(content, target)
        return place

    def _remove(self, parts: Parts, *, itself: bool = True) -> None:
        depth = len(parts)
        gone = [
            each for each in self.entries if each[:depth] == parts and (itself or len(each) > depth)
        ]
        for each in gone:
            del self.entries[each]

    def file(self, path: str) -> Path | None:
        """Return where the bytes of a file are, whatever links lead to it; None: no such file."""
        waiting, at = list(reversed(path.strip("/").split("/"))), tuple[str, ...]()
        for _ in range(_MOST_LINKS * 8):
            if not waiting:
                return self.entries.get(at, Entry()).content
            name = waiting.pop()
            if name in ("", "."):
                continue
            if name == "..":
                at = at[:-1]
                continue
            entry = self.entries.get((*at, name))
            if entry is not None and entry.target:
                if entry.target.startswith("/"):
                    at = ()
                waiting += reversed(entry.target.split("/"))
            else:
                at = (*at, name)
        raise BuildError(f"/{path}: its symbolic links never end", "name another image")

    def files_below(self, folder: str) -> Iterator[tuple[str, Path]]:
        """Yield the files below a folder, links to files included: relative path, bytes."""
        top = split(folder, None)
        for parts, entry in sorted(self.entries.items()):
            if parts[: len(top)] == top and (entry.content or entry.target):
                content = self.file("/".join(parts))
                if content is not None:
                    yield posixpath.join(*parts[len(top) :]), content


def members(
    stream: IO[bytes], layer: Layer
) -> Iterator[tuple[tarfile.TarInfo, Parts, tarfile.TarFile]]:
    """Yield what is in a layer, as it comes; BuildError for a path that climbs out of it."""
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as tar:
            for member in tar:
                yield member, split(member.name, layer), tar
    except (tarfile.TarError, EOFError, zlib.error) as error:
        cause = f"layer {layer.digest[:19]}... cannot be read as tar or tar.gz: {error}"
        raise BuildError(cause, "docker pull it, docker save it, and name that file") from None


def split(path: str, layer: Layer | None) -> Parts:
    """Return the parts of a path in a layer."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if (path.startswith("/") and layer is not None) or ".." in parts:
        where = f"layer {layer.digest[:19]}... has" if layer is not None else "there is"
        cause = f"{where} a path that climbs out of the image: {path!r}"
        raise BuildError(cause, "do not use this image: nobody who means well makes such a layer")
    return parts


def holds(layer: Layer, place: Parts) -> bool:
    """Return whether a layer changes something at ``place``, reading no more than it must.

    Who writes a layer walks folders in the order of their names: behind ``place`` nothing of it
    can come. A layer that is small, or in no order, is read to its end.
    """
    before: Parts = ()
    in_order = layer.size > _SMALL
    with layer.read() as stream:
        for _, parts, _ in members(stream, layer):
            name = parts[-1] if parts else ""
            if name == _OPAQUE:
                if place[: len(parts) - 1] == parts[:-1]:
                    return True
                continue
            plain = (*parts[:-1], name.removeprefix(_WHITEOUT)) if parts else parts
            removed = name.startswith(_WHITEOUT) and place[: len(plain)] == plain
            if plain[: len(place)] == place or removed:
                return True
            in_order = in_order and plain >= before
            if in_order and plain > place:
                return False
            before = plain
    return False
