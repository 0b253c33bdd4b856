"""The lock: exact versions of everything the execution environment holds.

A lock is a pip requirement file with hashes, ``<flavour>.txt``. Those of ``cpu`` and ``gpu`` have
another beside them, ``torch-<flavour>.txt``, with torch alone: its CPU build is not on the default
package index, and its ``+cpu`` version keeps pip from taking the several GB of the CUDA build.
``scripts/refreeze`` renews them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.errors import EnvironmentSetupError
from deploy.files import digest_of
from deploy.hardware.needs import GpuNeeds, cuda_needs

Flavour = Literal["serving", "cpu", "gpu"]
"""What an environment is for: to serve on CPUs and nothing else; the same with all that NuGraph
itself needs, on CPUs or with CUDA."""
_REMEDY = "git checkout the file, or renew the lock with scripts/refreeze"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)\s*(\\)?$")


@dataclass(frozen=True)
class Lock:
    """A lock of one flavour.

    Attributes:
        python: ``X.Y`` of the interpreter it is made for.
        torch: Requirement file that holds torch alone; None: it is none of the packages.
        packages: Requirement file with everything else.
        digest: sha256 over all files.
        versions: Version by package name.
    """

    python: str
    torch: Path | None
    packages: Path
    digest: str
    versions: dict[str, str]

    def gpu_needs(self) -> GpuNeeds:
        """Return what the locked torch asks of driver and GPUs.

        Raises:
            EnvironmentSetupError: If it is none for GPUs, or for a CUDA the kit does not know.
        """
        software = f"torch {self.versions.get('torch')}"
        # Up to CUDA 12 the package's name ends in -cu12.
        runtimes = [v for n, v in self.versions.items() if n.startswith("nvidia-cuda-runtime")]
        if not runtimes:
            raise EnvironmentSetupError(f"{software} of lock file {self.packages} is not for GPUs")
        cuda = ".".join(runtimes[0].split(".")[:2])
        try:
            return cuda_needs(software, cuda)
        except KeyError:
            raise EnvironmentSetupError(
                f"{software} is built for CUDA {cuda}, whose driver the kit does not know"
            ) from None


def read_lock(folder: Path, flavour: Flavour) -> Lock:
    """Read the lock of ``flavour`` from ``folder``.

    Raises:
        EnvironmentSetupError: Naming the file and line that is not an exact version.
    """
    torch = None if flavour == "serving" else folder / f"torch-{flavour}.txt"
    packages = folder / f"{flavour}.txt"
    files = [packages] if torch is None else [torch, packages]
    versions: dict[str, str] = {}
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise EnvironmentSetupError(f"lock file {path}: {error.strerror}", _REMEDY) from None
        except UnicodeDecodeError:
            raise EnvironmentSetupError(f"lock file {path}: not a text file", _REMEDY) from None
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith(("#", "    --hash=sha256:")):
                continue
            match = _PIN.match(line)
            if match is None:
                raise EnvironmentSetupError(
                    f"lock file {path}, line {number}: not an exact version: {line.strip()!r}",
                    _REMEDY,
                )
            versions[match[1].lower()] = match[2]
    if torch is not None and "torch" not in versions:
        raise EnvironmentSetupError(f"lock file {torch}: torch is not in it", _REMEDY)
    return Lock(
        python="3.11",
        torch=torch,
        packages=packages,
        digest=digest_of(files, base=folder),
        versions=versions,
    )
