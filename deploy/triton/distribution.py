"""A Triton without a container: unpacked from a wheel into the cache, in NVIDIA's layout.

The layout is that of NVIDIA's image (``bin``, ``lib``, ``backends``). The wheel is
unpacked, not installed: its own requirements would change the environment it lands in.
"""

import os
import platform
import shutil
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import built_folder, locked, sha256_of, work_folder
from deploy.host.paths import cache_folder
from deploy.host.programs import run_pip
from deploy.triton.release import TritonRelease, Wheel

_SERVER = "pytriton/tritonserver/"
_LIBRARIES = "nvidia_pytriton.libs/"
_STUBS = _SERVER + "python_backend_stubs/"


@dataclass(frozen=True)
class TritonDistribution:
    """An unpacked Triton.

    Attributes:
        root: Folder with ``bin``, ``lib`` and ``backends``.
        stub_python: The Python version its Python backend's stub is built for.
    """

    root: Path
    stub_python: str

    @classmethod
    def in_cache(cls, release: TritonRelease, python: str) -> "TritonDistribution":
        """Return the one with stubs for ``python``, whether unpacked yet or not."""
        if release.root is not None:
            return cls(root=release.root, stub_python=release.python)
        name = f"{release.server}-py{python}-{_wheel(release, python).sha256[:12]}"
        return cls(root=cache_folder() / "triton" / name, stub_python=python)

    @property
    def executable(self) -> Path:
        return self.root / "bin" / "tritonserver"

    @property
    def stub(self) -> Path:
        return self.backends / "python" / "triton_python_backend_stub"

    @property
    def backends(self) -> Path:
        return self.root / "backends"

    @property
    def libraries(self) -> Path:
        return self.root / "lib"


def _wheel(release: TritonRelease, python: str) -> Wheel:
    if release.wheel is None:
        raise EnvironmentSetupError(
            f"there is no stub of Triton {release.release} for Python {python}: its own is for "
            f"{release.python}, and one of another release would crash the server",
            f"use an environment with Python {release.python}",
        )
    return release.wheel


def ensure_distribution(
    release: TritonRelease, python: str, say: Say, *, wheels: Path | None = None
) -> TritonDistribution:
    """Return the distribution, unpacked into the cache if necessary.

    ``wheels`` is the folder that its wheel is in; None: it is downloaded.

    Raises:
        EnvironmentSetupError: If the release has no stub for this Python.
    """
    if python != (release.own_python or python):
        _wheel(release, python)
    found = TritonDistribution.in_cache(release, python)
    if found.executable.exists():
        return found
    with locked(found.root.with_name(f"{found.root.name}.lock")):
        if not found.executable.exists():
            with work_folder(found.root.with_name(f"{found.root.name}.whl")) as scratch:
                wheel = _download(release, scratch, say, wheels)
                say("unpacking tritonserver")
                with built_folder(found.root) as folder:
                    _unpack(wheel, folder, python)
    return found


def check_libc(release: TritonRelease) -> None:
    """Check that this system's glibc can run the wheel's tritonserver."""
    libc = platform.libc_ver()[1]
    wanted = release.glibc
    if libc and tuple(int(part) for part in libc.split(".")[:2]) < wanted:
        raise EnvironmentSetupError(
            f"Triton {release.release} without a container needs glibc "
            f"{wanted[0]}.{wanted[1]}; this system has {libc}",
            "use a newer system (Debian 12, Ubuntu 22.04, EL 10), or a container engine",
        )


def _download(release: TritonRelease, folder: Path, say: Say, wheels: Path | None) -> Path:
    wanted = _wheel(release, "")
    say(f"downloading tritonserver {release.server} ({wanted.requirement})")
    command = ["download", "--no-deps", "--quiet", "--only-binary=:all:", "--dest", str(folder)]
    command.append(wanted.requirement)
    pip = partial(run_pip, scratch=folder)
    if wheels is not None:
        command += ["--isolated", "--no-index", "--find-links", str(wheels.resolve())]
        fill = f"pip download --no-deps --dest {quote(str(wheels))} {wanted.requirement}"
        pip = partial(pip, remedy=f"{fill}, where PyPI can be reached")
    pip(command, f"cannot download {wanted.requirement}")
    [wheel] = folder.glob("*.whl")
    digest = sha256_of(wheel)
    if digest != wanted.sha256:
        raise EnvironmentSetupError(
            f"{wheel.name} has sha256 {digest[:16]}..., expected "
            f"{wanted.sha256[:16]}...: not the published file",
            "check the package index that pip uses (pip config list)",
        )
    return wheel


def _unpack(wheel: Path, folder: Path, python: str) -> None:
    stubs = f"{_STUBS}{python}/"
    places = {
        f"{_SERVER}bin/": folder / "bin",
        f"{_SERVER}backends/": folder / "backends",
        f"{_SERVER}caches/": folder / "caches",
        _LIBRARIES: folder / "lib",
        stubs: folder / "backends" / "python",
    }
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if not any(name.startswith(stubs) for name in names):
            there = sorted({n.split("/")[3] for n in names if n.startswith(_STUBS)})
            cause = f"{wheel.name} has no Python backend stub for Python {python}"
            raise EnvironmentSetupError(cause, f"use an environment with Python {', '.join(there)}")
        for name in names:
            for prefix, place in places.items():
                if name.startswith(prefix):
                    path = place / name.removeprefix(prefix)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as source, path.open("wb") as target:
                        shutil.copyfileobj(source, target)
    copy = TritonDistribution(folder, python)
    copy.executable.chmod(0o755)
    copy.stub.chmod(0o755)
    os.sync()
