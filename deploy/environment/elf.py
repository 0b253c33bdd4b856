"""Strip symbols from ELF files, and read which glibc they need.

The format: System V ABI, chapters 4 and 5. Not by binutils, which a host may lack, and whose strip
breaks libraries that auditwheel has changed.
"""

import mmap
import re
import struct
from collections.abc import Iterable
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHT_NULL, _SHT_NOBITS = 0, 8
_SHF_ALLOC = 2
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)(?=[.\0])")

Version = tuple[int, int]


def is_elf(path: Path) -> bool:
    """Return whether ``path`` is a 64-bit, little-endian ELF file."""
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def drop_symbols(path: Path) -> int:
    """Strip the symbol table and debugging information from an ELF file; return the bytes saved.

    Does what ``strip --strip-unneeded`` does if they come after everything that is loaded, as a
    linker leaves them. A file that was rearranged later is left unchanged.
    """
    with path.open("r+b") as stream:
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                size = len(data)
                header, end, tail = _without_symbols(data)
        except (struct.error, ValueError, IndexError, OverflowError, MemoryError):
            return 0  # cut off, made up, or not as a linker leaves it
        saved = size - end - len(tail)
        if saved <= 0:
            return 0
        stream.seek(end)
        stream.write(tail)
        stream.truncate()
        stream.seek(0)
        stream.write(header)
        return saved


def _without_symbols(data: mmap.mmap) -> tuple[bytes, int, bytes]:
    """Return the new header, the end of what is loaded, and what follows: names, section headers.

    By these, tools still find the sections that are loaded.
    """
    header = list(_HEADER.unpack_from(data))
    phoff, shoff, (phnum, shentsize, shnum, shstrndx) = header[5], header[6], header[10:]
    if not header[0].startswith(_MAGIC) or not shnum or shentsize != _SECTION.size:
        raise ValueError
    segments = [_SEGMENT.unpack_from(data, phoff + n * _SEGMENT.size) for n in range(phnum)]
    end = max((offset + size for _, _, offset, _, _, size, _, _ in segments), default=0)
    sections = [_SECTION.unpack_from(data, shoff + n * _SECTION.size) for n in range(shnum)]
    loaded = [bool(s[2] & _SHF_ALLOC) or s[1] == _SHT_NULL for s in sections]
    count = loaded.index(False)
    used = max(s[4] + s[5] for s in sections if s[1] != _SHT_NOBITS)
    # Something behind the last section (an archive, weights) is not ours to cut.
    if any(loaded[count:]) or len(data) > max(used, shoff + shnum * shentsize):
        raise ValueError
    kept = sections[:count]
    if any(s[4] + s[5] > end for s in kept if s[1] != _SHT_NOBITS):
        raise ValueError
    of_names = sections[shstrndx]
    names = data[of_names[4] : of_names[4] + of_names[5]]
    table = -(-(end + len(names)) // 8) * 8
    kept.append((*of_names[:4], end, *of_names[5:]))
    header[6], header[12], header[13] = table, len(kept), count
    tail = names.ljust(table - end, b"\0") + b"".join(_SECTION.pack(*s) for s in kept)
    return _HEADER.pack(*header), end, tail


def glibc_needed(paths: Iterable[Path]) -> Version:
    """Return the newest glibc whose symbols the ELF files among ``paths`` require."""
    newest = (0, 0)
    for path in paths:
        if path.is_file() and not path.is_symlink() and is_elf(path):
            with (
                path.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                found = ((2, int(match[1])) for match in _GLIBC.finditer(data))
                newest = max(newest, *found, (0, 0))
    return newest
