"""A user's own execution environment, packed or a folder: inspected, never started.

Triton looks at it only when it loads a model, says little or nothing about what is wrong, and after
one archive that it cannot unpack it fails on all others too.
"""

import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from deploy.environment.environment import MARKER, Environment
from deploy.host.archives import DAMAGED, GZIP, unzipped
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import built_folder, locked, marks_of
from deploy.host.paths import cache_folder

_FACTS = "facts-2.json"  # those of an older kit may name a Python that is none
_USTAR, _USTAR_AT = b"ustar", 257
_LIBPYTHON = re.compile(r"lib/libpython(\d+\.\d+)\.so\.\d+\.\d+")
_STDLIB = re.compile(r"lib/python(\d+\.\d+)(?:/.*)?")
_NUMPY = re.compile(
    r"lib/python(\d+\.\d+)/site-packages/numpy-(\d[^-/]*?)(?:\.dist-info|-[^/]*\.egg-info)(?:/.*)?"
)
_SCRIPTS = "etc/conda/activate.d/"
_REPACK = "pack it with conda-pack: conda-pack --name ENVIRONMENT --output environment.tar.gz"
# A block of a file system; the last one of each file is half empty on average.
_BLOCK = 4096
_CHUNK = 1 << 20


class GivenEnvironment(BaseModel, frozen=True):
    """What is known about an environment; None for what it does not contain.

    Attributes:
        activates: Whether it has the script that Triton sources before it starts a stub.
        scripts: Whether that script runs others, in ``etc/conda/activate.d``.
        python: ``X.Y``.
        libpython: The shared library of its Python, on this host.
        virtual: Whether it is a virtual environment, whose Python lies elsewhere.
        unpacked_bytes: What an archive takes when unpacked; 0 for a folder.
        digest: Identifies its contents, if the kit has made it.
    """

    path: Path
    packed: bool
    activates: bool = False
    scripts: bool = False
    python: str | None = None
    numpy: str | None = None
    libpython: Path | None = None
    virtual: bool = False
    unpacked_bytes: int = 0
    digest: str | None = None


def look_into(path: Path, say: Say = lambda _: None) -> GivenEnvironment:
    """Inspect an environment; an archive is read once, to the end, to see that it is complete."""
    try:
        if path.is_dir():
            return _look_into_folder(path)
        _check_kind(path)
        seen = marks_of(path)
    except OSError as error:
        raise EnvironmentSetupError(f"execution environment {path}: {error.strerror}") from None
    kept = cache_folder() / "packed" / hashlib.sha256(seen.encode()).hexdigest()[:16]
    with locked(kept.with_suffix(".lock")):
        with suppress(OSError, ValidationError):
            return GivenEnvironment.model_validate_json((kept / _FACTS).read_bytes())
        say(f"reading {path.name}")
        with built_folder(kept) as folder:
            facts = _look_into_archive(path, folder, kept)
            (folder / _FACTS).write_text(facts.model_dump_json(), encoding="utf-8")
    return facts


def planned(environment: Environment) -> GivenEnvironment:
    """Return what is known about an environment of the kit's, made or not."""
    return GivenEnvironment(
        path=environment.folder,
        packed=False,
        activates=True,
        python=environment.interpreter.short_version,
        numpy=environment.lock.versions.get("numpy"),
        libpython=environment.libpython,
        digest=environment.digest,
    )


def check_usable(given: GivenEnvironment, *, numpy_below: int | None, in_container: bool) -> None:
    """Check what every model needs; ``numpy_below`` is the first numpy that stubs cannot use."""
    name = f"execution environment {given.path}"
    if not given.activates:
        root = " at its root" if given.packed else ""
        raise EnvironmentSetupError(f"{name} has no bin/activate{root}", _REPACK)
    if given.virtual and in_container:
        cause = f"{name} is a virtual environment; a container cannot see the Python outside it"
        raise EnvironmentSetupError(cause, _REPACK)
    wanted = f"numpy < {numpy_below}" if numpy_below is not None else "numpy"
    install = f"install {wanted} in it"
    if given.python is not None and not given.virtual:
        if given.libpython is None:
            cause = f"{name} has no libpython{given.python}.so, which its stub loads"
            raise EnvironmentSetupError(cause, _REPACK)
        if given.numpy is None:
            raise EnvironmentSetupError(f"{name} has no numpy, which every stub imports", install)
    if given.numpy is None or numpy_below is None:
        return
    if int(given.numpy.partition(".")[0]) >= numpy_below:
        cause = f"{name} has numpy {given.numpy}, with which this Triton returns empty tensors"
        raise EnvironmentSetupError(cause, install)


def _check_kind(path: Path) -> None:
    with path.open("rb") as stream:
        head = stream.read(512)
    if not head.startswith(GZIP) and not head[_USTAR_AT:].startswith(_USTAR):
        raise EnvironmentSetupError(
            f"execution environment {path} is neither tar.gz nor plain tar: Triton reads no other "
            "archives",
            _REPACK,
        )


def _look_into_folder(path: Path) -> GivenEnvironment:
    library = path / "lib"
    found = [path / "bin" / "activate", path / "pyvenv.cfg", *library.glob("libpython*")]
    found += (path / _SCRIPTS).glob("*")
    found += [*library.glob("python3.*"), *library.glob("python3.*/site-packages/numpy-*")]
    names = [str(p.relative_to(path)) for p in found if p.exists()]
    marker = path / MARKER
    libraries = {m[1]: path / name for name in names if (m := _LIBPYTHON.fullmatch(name))}
    digest = _digest(marker.read_bytes()) if marker.is_file() else None
    return _facts(path, names, libraries, packed=False, digest=digest)


def _look_into_archive(path: Path, folder: Path, kept: Path) -> GivenEnvironment:
    """Read an archive to the end; copy its libpython to ``folder``, which becomes ``kept``."""
    names: list[str] = []
    libraries: dict[str, Path] = {}
    digest, size = None, 0
    try:
        with path.open("rb") as stream:
            plain = unzipped(stream)
            with tarfile.open(fileobj=plain, mode="r|") as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    names.append(name)
                    size += -(-member.size // _BLOCK) * _BLOCK
                    if not member.isfile():
                        continue
                    content = tar.extractfile(member)
                    assert content is not None
                    if (match := _LIBPYTHON.fullmatch(name)) is not None:
                        libraries[match[1]] = kept / Path(name).name
                        with (folder / Path(name).name).open("wb") as copy:
                            shutil.copyfileobj(content, copy)
                    elif name == MARKER:
                        digest = _digest(content.read())
            while plain.read(_CHUNK):  # the checksum comes last
                pass
    except DAMAGED as error:
        cause = f"execution environment {path} is cut off or damaged: {error}"
        raise EnvironmentSetupError(cause, "copy or pack it again and compare its sha256") from None
    return _facts(path, names, libraries, packed=True, digest=digest, unpacked_bytes=size)


def _facts(
    path: Path, names: Iterable[str], libraries: Mapping[str, Path], **others: Any
) -> GivenEnvironment:
    """Return what the file names reveal, and ``others``; ``libraries`` are the libpythons."""
    found = set(names)
    pythons = {m[1] for name in found if (m := _STDLIB.fullmatch(name))}
    # Conda has a link lib/python3.1, to python3.11; an older Python may have left its folder.
    python = max(
        pythons, key=lambda each: (each in libraries, *map(int, each.split("."))), default=None
    )
    numpies = sorted(m[2] for name in found if (m := _NUMPY.fullmatch(name)) and m[1] == python)
    return GivenEnvironment(
        path=path,
        activates="bin/activate" in found,
        scripts=any(name.startswith(_SCRIPTS) and name != _SCRIPTS for name in found),
        python=python,
        numpy=numpies[0] if numpies else None,
        libpython=libraries.get(python or ""),
        virtual="pyvenv.cfg" in found,
        **others,
    )


def _digest(marker: bytes) -> str | None:
    try:
        return str(json.loads(marker)["digest"])
    except (ValueError, KeyError, TypeError):
        return None
