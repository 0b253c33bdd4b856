"""Unpack a wheel into the files of a prefix, as an installation would place them.

Source of the format: PyPA's "Binary distribution format" and "Entry points".
"""

from __future__ import annotations

import configparser
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deploy.errors import EnvironmentSetupError
from deploy.packing.slimming import is_needed

_LAUNCHER = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
# The shell reads the second line as: exec that Python with this file. Python reads a
# string from the second line to the third. So a script needs no absolute path.

_ENTRY_POINT = """\
import sys

from {module} import {attribute}

if __name__ == "__main__":
    sys.exit({call}())
"""
_REFERENCE = re.compile(r"([\w.]+)\s*:\s*(\w+)([\w.]*)\s*(\[.*\])?")


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says.

    Attributes:
        distribution: The distribution, normalised as conda names packages.
        version: Its version.
    """

    distribution: str
    version: str

    @classmethod
    def of(cls, wheel: Path) -> WheelName:
        """Read the name of ``wheel``."""
        distribution, version, *_ = wheel.name.split("-")
        return cls(re.sub(r"[-_.]+", "-", distribution).lower(), version)


def unpack_wheel(wheel: Path, prefix: Path, python: str) -> None:
    """Place the needed files of ``wheel`` below ``prefix``.

    Args:
        wheel: The wheel.
        prefix: The folder to fill.
        python: ``X.Y`` of the interpreter it will run in.

    Raises:
        EnvironmentSetupError: If the file is not a wheel, or a broken one.
    """
    site = f"lib/python{python}/site-packages"
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = _place(member.filename, site)
                if member.is_dir() or path is None or not is_needed(path):
                    continue
                target = prefix / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1024 * 1024)
                executable = member.external_attr >> 16 & stat.S_IXUSR or path.startswith("bin/")
                target.chmod(0o755 if executable else 0o644)
                if path.startswith("bin/"):
                    _launch_relatively(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise EnvironmentSetupError(
            f"{wheel}: not a usable wheel: {error}", f"rm {wheel} and repeat the command"
        ) from None
    for name, text in _console_scripts(prefix / site):
        script = prefix / "bin" / name
        if is_needed(f"bin/{name}"):
            script.parent.mkdir(exist_ok=True)
            script.write_text(text, encoding="utf-8")
            script.chmod(0o755)


def _place(name: str, site: str) -> str | None:
    """Return where below a prefix the member ``name`` belongs; None for headers.

    Raises:
        ValueError: If it would leave the prefix.
    """
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(f"it holds {name!r}")
    if path.parts[0].endswith(".data") and len(path.parts) > 2:
        folders = {"purelib": site, "platlib": site, "scripts": "bin", "data": "."}
        folder = folders.get(path.parts[1])
        return None if folder is None else str(PurePosixPath(folder, *path.parts[2:]))
    return f"{site}/{path}"


def _launch_relatively(script: Path) -> None:
    """Replace the ``#!python`` that an installation would fill in."""
    with script.open("rb") as stream:
        if stream.read(8) != b"#!python":
            return
        text = stream.read().partition(b"\n")[2]
    script.write_bytes(_LAUNCHER.encode() + text)


def _console_scripts(site: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of the scripts that entry points ask for."""
    for path in site.glob("*.dist-info/entry_points.txt"):
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(path.read_text(encoding="utf-8"))
        if not parser.has_section("console_scripts"):
            continue
        for name, reference in parser.items("console_scripts"):
            match = _REFERENCE.fullmatch(reference)
            if match is None or "/" in name:
                raise EnvironmentSetupError(f"{path.parent.name}: entry point {name} is broken")
            module, attribute, rest = match[1], match[2], match[3]
            text = _ENTRY_POINT.format(module=module, attribute=attribute, call=attribute + rest)
            yield name, _LAUNCHER + text
