"""Which tools are here, in which versions, and what to install where one is missing."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import BuildError
from deploy.sif.squashfs import Compression, options, without_epoch

Version = tuple[int, ...]

# 1.2 is the first whose definition files take arguments.
APPTAINER_OLDEST = (1, 2)
# 4.4 is the first that sets the times of all files.
_MKSQUASHFS = (4, 4)
# 4.5 is the first that reads a tar.
TAR_READER = (4, 5)
# Seen in 1.4.5: "while executing inspect command: exit status 255".
_OF_THE_SHELL = re.compile(r"""['"\n&;()|<>]| #""")
# 4.7.5 mends files with holes and files found to be duplicates, which these write wrongly.
_CORRUPTING = ((4, 7), (4, 7, 5))


class MissingToolError(BuildError):
    """A program that the build needs is not here, or not in a usable version."""


@dataclass(frozen=True)
class Tool:
    """A program on this machine.

    Attributes:
        name: Its name.
        path: Where it lies.
        version: As in ``(1, 4, 5)``.
    """

    name: str
    path: Path
    version: Version

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}"


@dataclass(frozen=True)
class SifTools:
    """What every way to a .sif needs.

    Attributes:
        apptainer: Makes the container's own files and the header.
        mksquashfs: Writes the file system.
    """

    apptainer: Tool
    mksquashfs: Tool


def find_tools(compression: Compression) -> SifTools:
    """Return the tools, checked to be able to do what will be asked of them.

    Args:
        compression: How the file system will be compressed.

    Raises:
        MissingToolError: If one is missing, too old, or known to write wrong files; with the
            command that installs it on this distribution.
    """
    apptainer = _find("apptainer", "--version")
    mksquashfs = _find("mksquashfs", "-version")
    missing = [
        name
        for name, tool in (("apptainer", apptainer), ("mksquashfs (squashfs-tools)", mksquashfs))
        if tool is None
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingToolError(
            f"{' and '.join(missing)} {verb} not installed; a .sif needs Apptainer and mksquashfs",
            install_hint_here(),
        )
    assert apptainer is not None
    assert mksquashfs is not None
    _check_version(apptainer, APPTAINER_OLDEST)
    _check_version(mksquashfs, _MKSQUASHFS)
    if _CORRUPTING[0] <= mksquashfs.version < _CORRUPTING[1]:
        raise MissingToolError(
            f"{mksquashfs} is known to write some files wrongly",
            "install squashfs-tools 4.7.5 or newer, or 4.6, and put it first on PATH",
        )
    _check_compressor(mksquashfs, compression)
    return SifTools(apptainer=apptainer, mksquashfs=mksquashfs)


def check_folder(folder: Path) -> None:
    """Check that Apptainer can build in a folder.

    Raises:
        BuildError: If its name holds what Apptainer's own inspection takes for the shell's.
    """
    found = _OF_THE_SHELL.search(str(folder))
    if found is not None:
        raise BuildError(
            f"Apptainer cannot build in {str(folder)!r}: {found[0]!r} is in its name",
            "name another --out",
        )


def version_in(text: str) -> Version:
    """Return the first version number in ``text``; empty if there is none."""
    found = re.search(r"\b(\d+(?:\.\d+)+)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def install_hint(os_release: Mapping[str, str]) -> str:
    """Return how to install Apptainer and mksquashfs on a distribution.

    Args:
        os_release: The content of its ``/etc/os-release``.
    """
    family = {os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()}
    install = "sudo dnf install -y apptainer squashfs-tools"
    if family & {"debian", "ubuntu"}:
        return "sudo scripts/install_container_tools"
    if os_release.get("ID") == "fedora":
        return install
    if os_release.get("ID") == "rhel":
        major = os_release.get("VERSION_ID", "").partition(".")[0]
        epel = f"https://dl.fedoraproject.org/pub/epel/epel-release-latest-{major}.noarch.rpm"
        return f"sudo dnf install -y {epel} && {install}"
    if "rhel" in family:
        return f"sudo dnf install -y epel-release && {install}"
    return "see https://apptainer.org/docs/admin/main/installation.html"


def _find(name: str, flag: str) -> Tool | None:
    path = shutil.which(name)
    if path is None:
        return None
    # mksquashfs has ended with a status of 1 after its version, in some versions.
    done = subprocess.run([path, flag], capture_output=True, text=True, check=False)
    return Tool(name=name, path=Path(path), version=version_in(done.stdout))


def _check_version(tool: Tool, oldest: Version) -> None:
    if tool.version < oldest:
        raise MissingToolError(
            f"{tool} is too old: {'.'.join(map(str, oldest))} or newer is needed",
            install_hint_here(),
        )


def _check_compressor(mksquashfs: Tool, compression: Compression) -> None:
    # By trial: what was built into it is said differently by every version.
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty"
        empty.mkdir()
        done = subprocess.run(
            [mksquashfs.path, empty, Path(scratch) / "out", *options(compression, epoch=0, room=0)],
            capture_output=True,
            check=False,
            env=without_epoch(),
        )
    if done.returncode != 0:
        raise MissingToolError(
            f"{mksquashfs} cannot compress with {compression.name}",
            "use --compressor gzip" if compression.name != "gzip" else install_hint_here(),
        )


def install_hint_here() -> str:
    """Return how to install Apptainer and mksquashfs on this machine."""
    try:
        return install_hint(platform.freedesktop_os_release())
    except OSError:
        return install_hint({})
