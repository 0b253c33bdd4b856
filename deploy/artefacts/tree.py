"""What layers amount to: the files of an image, without unpacking it anywhere.

Links are followed in the tree alone, never on this host, and what climbs out of it is refused.
Whiteouts: https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import posixpath
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO

from deploy.artefacts.layers import Layer
from deploy.host.archives import DAMAGED, unzipped
from deploy.host.errors import BuildError

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_LINKS = 40
_SMALL = 1 << 20  # bytes
# Members that say something of the next one, or of all.
_HEADERS = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
}

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A file, whose bytes are at ``content``; or a link; or a folder.

    A symbolic link leads to ``target``, a hard one to the file ``linked`` of a layer below.
    """

    content: Path | None = None
    target: str = ""
    linked: Parts = ()


@dataclass
class Tree:
    """Files by their paths' parts; contents that layers bring are kept in the folder ``kept``.

    It is of some layers, which may lie over others: of those it hides the paths ``removed``, and
    what is in the folders ``emptied``.
    """

    kept: Path
    entries: dict[Parts, Entry] = field(default_factory=dict)
    removed: set[Parts] = field(default_factory=set)
    emptied: set[Parts] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    def add(self, layer: Layer, wanted: Callable[[Parts], bool]) -> None:
        """Lay a layer over the tree; of its files only those that are ``wanted`` are kept."""
        laid = self.read(layer, wanted).over(self)
        self.entries, self.removed, self.emptied = laid.entries, laid.removed, laid.emptied
        for parts, entry in self.entries.items():
            if entry.linked:
                what = f"{'/'.join(parts)} is a hard link to {'/'.join(entry.linked)}"
                cause = f"layer {layer.digest[:19]}...: {what}, which is not in that layer"
                remedy = "docker create it, docker cp its /opt/tritonserver, and name that folder"
                raise BuildError(cause, remedy)

    def read(self, layer: Layer, wanted: Callable[[Parts], bool]) -> "Tree":
        """Return the tree of one layer; of its files only those that are ``wanted`` are kept."""
        found = Tree(self.kept, _numbers=self._numbers)
        with layer.whole().open("rb") as stream, members(stream, layer) as content:
            for member, parts, tar in content:
                name = parts[-1] if parts else ""
                if name == _OPAQUE:
                    found.emptied.add(parts[:-1])
                elif name.startswith(_WHITEOUT):
                    found.removed.add((*parts[:-1], name.removeprefix(_WHITEOUT)))
                elif member.isdir():
                    found.entries[parts] = Entry()
                elif member.issym():
                    found.entries[parts] = Entry(target=member.linkname)
                elif member.islnk() and wanted(parts):
                    linked = split(member.linkname, layer)
                    found.entries[parts] = found.entries.get(linked, Entry(linked=linked))
                elif member.isreg() and wanted(parts):
                    found.entries[parts] = Entry(self._keep(tar.extractfile(member)))
        found._add_linked(layer)
        return found

    def _add_linked(self, layer: Layer) -> None:
        """Give hard links to files that were not wanted their contents; of others none are kept."""
        waiting = {entry.linked for entry in self.entries.values() if entry.linked}
        if not waiting:
            return
        outside: dict[Parts, Entry] = {}
        with layer.whole().open("rb") as stream, members(stream, layer) as content:
            for member, parts, tar in content:
                if member.isreg() and parts in waiting:
                    outside[parts] = Entry(self._keep(tar.extractfile(member)))
        for parts, entry in self.entries.items():
            self.entries[parts] = outside.get(entry.linked, entry)

    def over(self, lower: "Tree") -> "Tree":
        """Return what is seen where this tree lies over a lower one."""
        # What is no folder also hides what was below a folder of that name.
        hidden = self.removed | {parts for parts, entry in self.entries.items() if entry != Entry()}
        seen = {
            parts: entry
            for parts, entry in lower.entries.items()
            if not any(parts[:depth] in hidden for depth in range(1, len(parts) + 1))
            and not any(parts[:depth] in self.emptied for depth in range(len(parts)))
        }
        for parts, entry in self.entries.items():
            seen[parts] = lower.entries.get(entry.linked, entry) if entry.linked else entry
        return Tree(
            self.kept, seen, lower.removed | self.removed, lower.emptied | self.emptied,
            self._numbers,
        )  # fmt: skip

    def _keep(self, content: IO[bytes] | None) -> Path:
        assert content is not None
        self.kept.mkdir(parents=True, exist_ok=True)
        place = self.kept / str(next(self._numbers))
        with place.open("wb") as target:
            shutil.copyfileobj(content, target)
        return place

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


class _Member(tarfile.TarInfo):
    """A member of a layer; tarfile holds what a long name or a pax header has in memory."""

    # Where tarfile lets subclasses step in; frombuf is passed over by that of Debian 12, for one.
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _SMALL:
            raise tarfile.ReadError(f"a header has {self.size} bytes")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found


@contextmanager
def members(
    stream: IO[bytes], layer: Layer
) -> Iterator[Iterator[tuple[tarfile.TarInfo, Parts, tarfile.TarFile]]]:
    """Yield what is in a layer, as it comes; BuildError for a path that climbs out of it."""
    try:
        with tarfile.open(fileobj=unzipped(stream), mode="r|*", tarinfo=_Member) as tar:
            yield ((member, split(member.name, layer), tar) for member in tar)
    except DAMAGED as error:
        remedy = "docker pull it, docker save it, and name that file"
        raise _refused(layer, f"cannot be read as tar or tar.gz: {error}", remedy) from None


def split(path: str, layer: Layer | None) -> Parts:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if (path.startswith("/") and layer is not None) or ".." in parts:
        what = f"a path that climbs out of the image: {path!r}"
        remedy = "do not use this image: nobody who means well makes such a layer"
        if layer is None:
            raise BuildError(f"there is {what}", remedy)
        raise _refused(layer, f"has {what}", remedy)
    return parts


def _refused(layer: Layer, why: str, remedy: str) -> BuildError:
    """Return why a layer cannot be used, if its bytes are its own.

    Others are said to be that, and are not kept: the next command asks for them again.
    """
    layer.whole()
    return BuildError(f"layer {layer.digest[:19]}... {why}", remedy)


def holds(layer: Layer, place: Parts) -> bool:
    """Return whether a layer changes something at ``place``, reading no more than it must.

    Who writes a layer mostly walks folders in the order of their names: behind ``place`` nothing
    of it comes then. A layer that is small, or in no order, is read to its end. What is answered
    of a large one is a guess, about bytes that nobody has verified.
    """
    before: Parts = ()
    in_order = layer.size > _SMALL
    with layer.read() as stream, members(stream, layer) as content:
        for _, parts, _ in content:
            name = parts[-1] if parts else ""
            if name == _OPAQUE:
                if place[: len(parts) - 1] == parts[:-1]:
                    return True
                continue
            if name.startswith(_WHITEOUT):  # which some write before all others
                plain = (*parts[:-1], name.removeprefix(_WHITEOUT))
                if plain[: len(place)] == place or place[: len(plain)] == plain:
                    return True
                continue
            if parts[: len(place)] == place:
                return True
            in_order = in_order and parts >= before
            # Some sort paths as words, in which a-b comes before a/b.
            if in_order and parts > place and "/".join(parts) > "/".join((*place, "")):
                return False
            before = parts
    return False
