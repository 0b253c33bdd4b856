"""The programs that make a .sif, and how to install those that are missing."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.artefacts.sif_file import Compressor, options, variables
from deploy.host.errors import BuildError
from deploy.host.failures import complaint
from deploy.host.programs import distribution

Version = tuple[int, ...]

# 1.2 is the first whose definition files take arguments.
_APPTAINER_OLDEST = (1, 2)
# 4.4 is the first that sets the times of all files.
_MKSQUASHFS_OLDEST = (4, 4)
_MKSQUASHFS_READS_TARS = (4, 5)
# These write files with holes and duplicate files wrongly.
_MKSQUASHFS_BROKEN = ((4, 7), (4, 7, 5))
# Seen in 1.4.5: "while executing inspect command: exit status 255".
_TAKEN_BY_A_SHELL = re.compile(r"""['"\n&;()|<>]| #""")


@dataclass(frozen=True)
class Tool:
    """A program on this machine, with its version as in ``(1, 4, 5)``."""

    name: str
    path: Path
    version: Version

    def __str__(self) -> str:
        return f"{self.name} {_dotted(self.version)}"


@dataclass(frozen=True)
class SifTools:
    """What it takes to make a .sif."""

    apptainer: Tool
    mksquashfs: Tool
    compressor: Compressor


def find_tools(compressor: Compressor) -> SifTools:
    apptainer = find_apptainer()
    mksquashfs = _find("mksquashfs", "-version", _MKSQUASHFS_OLDEST)
    if _MKSQUASHFS_BROKEN[0] <= mksquashfs.version < _MKSQUASHFS_BROKEN[1]:
        raise BuildError(
            f"{mksquashfs} is known to corrupt some files",
            "install squashfs-tools 4.7.5 or newer, or 4.6, and put it first on PATH",
        )
    _try_compressor(mksquashfs, compressor)
    return SifTools(apptainer, mksquashfs, compressor)


def find_apptainer() -> Tool:
    return _find("apptainer", "--version", _APPTAINER_OLDEST)


def check_reads_tars(mksquashfs: Tool) -> None:
    if mksquashfs.version < _MKSQUASHFS_READS_TARS:
        oldest = _dotted(_MKSQUASHFS_READS_TARS)
        cause = f"{mksquashfs} cannot read an image from Docker; that takes {oldest} or newer"
        raise BuildError(cause, "install a newer squashfs-tools, or build each --target separately")


def check_folder(folder: Path) -> None:
    """Check that ``folder`` has no characters that Apptainer's inspection passes to a shell."""
    found = _TAKEN_BY_A_SHELL.search(str(folder))
    if found is not None:
        cause = f"Apptainer cannot build in {str(folder)!r}: its name contains {found[0]!r}"
        raise BuildError(cause, "choose another --out")


def install_hint(os_release: Mapping[str, str] | None = None) -> str:
    """Return how to install Apptainer and mksquashfs, by an ``/etc/os-release`` (this host's)."""
    if os_release is None:
        os_release = distribution()
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


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _find(name: str, flag: str, oldest: Version) -> Tool:
    path = shutil.which(name)
    if path is None:
        cause = f"{name} is not installed; a .sif needs Apptainer and squashfs-tools"
        raise BuildError(cause, install_hint())
    # Some versions of mksquashfs exit with 1 after printing their version.
    done = subprocess.run([path, flag], capture_output=True, text=True, check=False)
    found = re.search(r"\b(\d+(?:\.\d+)+)", done.stdout)
    if found is None:
        cause = f"{path} does not say its version: {complaint(done.stderr or done.stdout)}"
        raise BuildError(cause, f"{path} {flag} must work for this user")
    tool = Tool(name, Path(path), tuple(map(int, found[1].split("."))))
    if tool.version < oldest:
        cause = f"{tool} is too old: {_dotted(oldest)} or newer is needed"
        raise BuildError(cause, install_hint())
    return tool


def _try_compressor(mksquashfs: Tool, compressor: Compressor) -> None:
    # By trial: each version lists its compressors differently.
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty"
        empty.mkdir()
        words = [str(empty), f"{scratch}/out", *options(compressor, epoch=0)]
        done = subprocess.run(
            [mksquashfs.path, *words], capture_output=True, check=False, env=variables()
        )
    if done.returncode != 0:
        cause = f"{mksquashfs} cannot compress with {compressor}"
        raise BuildError(cause, "use --compressor gzip" if compressor != "gzip" else install_hint())
