"""The lock: exact versions of everything in an execution environment.

A lock is a pip requirement file with hashes: ``<flavour>.txt`` for Python 3.11,
``<flavour>-X.Y.txt`` for others. Torch, where it is needed, has a file of its own,
``torch-<flavour>.txt`` or ``torch-<flavour>-X.Y.txt``: its CPU build is not on the default package
index, and its ``+cpu`` version keeps pip from the several GB of the CUDA build.
``scripts/refreeze`` renews NuGraph's, ``numlkit lock`` those of other environments.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from deploy.deployment.gpus import GpuNeeds, cuda_needs
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import digest_of
from deploy.host.programs import run_pip

Flavour = Literal["serving", "cpu", "gpu"]
"""What an environment is for: NuGraph's models on CPUs; or all models, on CPUs or with CUDA."""
PYTHON = "3.11"
"""What all flavours are locked for, and images have."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

_GB = 10**9
_REMEDY = "git checkout the file, or renew the lock with scripts/refreeze"
_HASH = "    --hash=sha256:"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)\s*(\\)?$")


class Sizes(NamedTuple):
    """Bytes, measured and rounded up: of downloads, the environment, its archive."""

    wheels: int
    environment: int
    packed: int

    @property
    def making(self) -> int:
        """What making the environment takes: pip keeps wheels, and unpacks more than it keeps."""
        return 2 * (self.wheels + self.environment)


SIZES: dict[Flavour, Sizes] = {
    "serving": Sizes(wheels=_GB // 20, environment=_GB // 5, packed=_GB // 20),
    "cpu": Sizes(wheels=_GB // 2, environment=_GB, packed=_GB * 4 // 10),
    "gpu": Sizes(wheels=3 * _GB, environment=9 * _GB // 2, packed=3 * _GB),
}


@dataclass(frozen=True)
class Lock:
    """A lock of one flavour for a Python (``X.Y``).

    ``torch`` is a requirement file with torch alone, ``packages`` one with the rest. ``digest`` is
    over both; ``hashes`` are of each package's wheel, but for torch's CPU build for Python 3.10.
    """

    python: str
    torch: Path | None
    packages: Path
    digest: str
    versions: dict[str, str]
    hashes: Mapping[str, str] = field(default_factory=dict)

    def gpu_needs(self) -> GpuNeeds:
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


def locked_pythons(folder: Path, flavour: Flavour) -> tuple[str, ...]:
    """Return the Pythons (``X.Y``) that ``flavour`` is locked for, best first."""
    names = re.compile(rf"{flavour}-3\.(\d+)\.txt")
    found = (names.fullmatch(path.name) for path in folder.glob(f"{flavour}-3.*.txt"))
    others = sorted((int(match[1]) for match in found if match is not None), reverse=True)
    first = (PYTHON,) if file_of(folder, flavour, PYTHON).is_file() else ()
    return *first, *(f"3.{minor}" for minor in others)


def file_of(folder: Path, name: str, python: str) -> Path:
    """Return where a part of a lock for a Python (``X.Y``) is."""
    return folder / (f"{name}.txt" if python == PYTHON else f"{name}-{python}.txt")


def read_lock(folder: Path, flavour: Flavour, python: str = PYTHON) -> Lock:
    beside = file_of(folder, f"torch-{flavour}", python)
    torch = beside if beside.is_file() else None
    packages = file_of(folder, flavour, python)
    files = [packages] if torch is None else [torch, packages]
    pins = {name: pin for path in files for name, pin in read_pins(path).items()}
    versions = {name: version for name, (version, _) in pins.items()}
    if torch is not None and "torch" not in versions:
        raise EnvironmentSetupError(f"lock file {torch}: it does not list torch", _REMEDY)
    return Lock(
        python=python,
        torch=torch,
        packages=packages,
        digest=digest_of(files, base=folder),
        versions=versions,
        hashes={name: sha256 for name, (_, sha256) in pins.items() if sha256},
    )


def read_pins(path: Path) -> dict[str, tuple[str, str]]:
    """Return version and sha256 (maybe empty) of each package in one file, by name."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise EnvironmentSetupError(f"lock file {path}: {reason}", _REMEDY) from None
    pins: dict[str, tuple[str, str]] = {}
    name = ""
    for number, line in enumerate(lines, start=1):
        if line.startswith(_HASH) and name:
            pins[name] = (pins[name][0], line.removeprefix(_HASH).rstrip(" \\"))
        elif line.strip() and not line.startswith(("#", _HASH)):
            match = _PIN.match(line)
            if match is None:
                cause = f"lock file {path}, line {number}: not an exact version: {line.strip()!r}"
                raise EnvironmentSetupError(cause, _REMEDY)
            name = match[1].lower()
            pins[name] = (match[2], "")
    return pins


def install_lock(folder: Path, lock: Lock, *, say: Say, wheels: Path | None) -> None:
    """Install a lock into a virtual environment, from the folder ``wheels`` or pip's index."""
    install = _installer(folder, say, wheels, "--python", str(folder / "bin" / "python"))
    if lock.torch is not None:
        version, torch = lock.versions["torch"], ["--requirement", str(lock.torch)]
        say(f"torch {version}")
        try:
            install(torch, "pip cannot install torch")
        except EnvironmentSetupError:
            if wheels is not None or not version.endswith("+cpu"):
                raise
            # The wheel is not where pip looks by default: ask PyTorch's own index for it.
            say(f"torch from {TORCH_CPU_INDEX}")
            torch += ["--index-url", TORCH_CPU_INDEX]
            install(torch, f"pip cannot install torch from {TORCH_CPU_INDEX}")
    say(f"{len(lock.versions) - (lock.torch is not None)} packages")
    packages = ["--require-hashes", "--requirement", str(lock.packages)]
    install(packages, "pip cannot install the locked packages")


def install_beside(folder: Path, lock: Path, *, python: str, say: Say, wheels: Path | None) -> None:
    """Install a requirement file with hashes into a folder, for a Python (``X.Y``) elsewhere."""
    words = ["--target", str(folder), "--python-version", python, "--require-hashes"]
    words += ["--requirement", str(lock)]
    install = _installer(folder, say, wheels)
    install(words, f"pip cannot install the packages of {lock.name}")


def _installer(
    scratch: Path, say: Say, wheels: Path | None, *general: str
) -> Callable[[Sequence[str], str], None]:
    """Return a function that runs ``pip install`` with more arguments, and says what failed."""
    # Modules are compiled when imported, and only a few are.
    command = [*general, "install", "--no-deps", "--no-compile", "--only-binary=:all:"]
    # Nor do a target or constraints count that a site sets for its users.
    command += ["--progress-bar=off", "--target="]
    constraints = {"PIP_CONSTRAINT": os.devnull}
    run = partial(run_pip, scratch=scratch, say=say, variables=constraints)
    if wheels is not None:
        # Isolated, since the host's pip settings may name another folder of wheels.
        command += ["--isolated", "--no-index", "--find-links", str(wheels.resolve())]
        run = partial(run, remedy=f"put the locked wheels into {wheels}")
    return lambda words, failed: run([*command, *words], failed)
