"""What the kit needs to know of ELF files, and to cut from them.

Source of the format: System V ABI, chapters 4 and 5, and the LSB on symbol versioning.
Read by hand, because a host that builds an environment need not have binutils.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_NULL, _SHT_STRTAB, _SHT_NOBITS = 0, 3, 8
_SHF_ALLOC = 2
_DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")

Version = tuple[int, int]


def is_elf(path: Path) -> bool:
    """Tell whether ``path`` is an ELF file of this architecture's word size."""
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def drop_symbols(path: Path) -> int:
    """Cut symbol table and debugging information, which nothing loads, off an ELF file.

    Does what ``strip --strip-unneeded`` does where they lie behind everything that is
    loaded, as a linker leaves them. A file that was rearranged later (its loaded parts
    lie behind) stays as it is.

    Args:
        path: The file; changed in place.

    Returns:
        Bytes that were cut.
    """
    with path.open("r+b") as stream:
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                symbols = _Symbols.read(data)
            return symbols.drop(stream)
        except _BROKEN:
            return 0


class _UnusualFileError(ValueError):
    """The file is not as a linker leaves it."""


# What numbers in a file that is cut off or made up lead to.
_BROKEN = (struct.error, ValueError, IndexError, OverflowError, MemoryError)


@dataclass(frozen=True)
class _Symbols:
    """Where the loaded parts of a file end, and the section headers of these parts."""

    header: tuple[int | bytes, ...]
    sections: list[tuple[int, ...]]
    names: bytes
    end: int
    size: int

    @classmethod
    def read(cls, data: mmap.mmap) -> _Symbols:
        header = _HEADER.unpack_from(data)
        _, _, _, _, _, phoff, shoff, _, _, _, phnum, shentsize, shnum, shstrndx = header
        if not header[0].startswith(_MAGIC) or not shnum or shentsize != _SECTION.size:
            raise _UnusualFileError
        segments = [_SEGMENT.unpack_from(data, phoff + n * _SEGMENT.size) for n in range(phnum)]
        end = max((offset + size for _, _, offset, _, _, size, _, _ in segments), default=0)
        sections = [_SECTION.unpack_from(data, shoff + n * _SECTION.size) for n in range(shnum)]
        names = data[sections[shstrndx][4] : sections[shstrndx][4] + sections[shstrndx][5]]
        loaded = [bool(s[2] & _SHF_ALLOC) or s[1] == _SHT_NULL for s in sections]
        kept = loaded.index(False)
        used = max(s[4] + s[5] for s in sections if s[1] != _SHT_NOBITS)
        size = len(data)
        # Something behind the last section (an archive, weights) is not ours to cut.
        if any(loaded[kept:]) or size > max(used, shoff + shnum * shentsize):
            raise _UnusualFileError
        if any(s[4] + s[5] > end for s in sections[:kept] if s[1] != _SHT_NOBITS):
            raise _UnusualFileError
        return cls(header, sections[:kept], names, end, size)

    def drop(self, stream: BinaryIO) -> int:
        """Truncate the file; tools still find the sections that are loaded."""
        names = b"\0"
        sections = []
        for name, *rest in self.sections:
            text = self.names[name : self.names.index(b"\0", name) + 1]
            sections.append((len(names) if len(text) > 1 else 0, *rest))
            names += text if len(text) > 1 else b""
        own = len(names)
        names += b".shstrtab\0"
        sections.append((own, _SHT_STRTAB, 0, 0, self.end, len(names), 0, 0, 1, 0))
        table = -(-(self.end + len(names)) // 8) * 8
        tail = names.ljust(table - self.end, b"\0")
        tail += b"".join(_SECTION.pack(*section) for section in sections)
        if self.end + len(tail) >= self.size:
            return 0
        header = list(self.header)
        header[6], header[12], header[13] = table, len(sections), len(sections) - 1
        stream.seek(self.end)
        stream.write(tail)
        stream.truncate()
        stream.seek(0)
        stream.write(_HEADER.pack(*header))
        return self.size - self.end - len(tail)


def glibc_needed(paths: Iterable[Path]) -> Version:
    """Return the newest version of glibc's symbols that ELF files among ``paths`` ask for."""
    newest = (0, 0)
    for path in paths:
        if path.is_file() and not path.is_symlink() and is_elf(path):
            with (
                path.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                newest = max(newest, _newest(data))
    return newest


def _newest(data: mmap.mmap) -> Version:
    try:
        return max(_versions(data), default=(0, 0))
    except _BROKEN:  # a test's data: no loader takes it either
        return (0, 0)


def _versions(data: mmap.mmap) -> Iterator[Version]:
    """Yield the versions in a file's table of needed versions (``.gnu.version_r``)."""
    header = _HEADER.unpack_from(data)
    segments = [
        _SEGMENT.unpack_from(data, header[5] + number * _SEGMENT.size)
        for number in range(header[10])
    ]

    def place(address: int) -> int:
        for kind, _, offset, start, _, size, _, _ in segments:
            if kind == _PT_LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise _UnusualFileError

    dynamic: dict[int, int] = {}
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _PT_DYNAMIC:
            dynamic = dict(struct.iter_unpack("<qQ", data[offset : offset + size // 16 * 16]))
    if _DT_VERNEED not in dynamic:
        return
    strings, need = place(dynamic[_DT_STRTAB]), place(dynamic[_DT_VERNEED])
    for _ in range(dynamic[_DT_VERNEEDNUM]):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, need)
        entry = need + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            match = _GLIBC.match(data, strings + name)
            if match is not None:
                yield int(match[1]), int(match[2])
            entry += step
        need += following
