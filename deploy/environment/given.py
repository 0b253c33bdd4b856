"""An execution environment that was given, packed or a folder: looked into, never started.

Triton looks at it only when it loads a model. What it finds wrong then it tells in few words, or
not at all; and after one archive that it cannot unpack it fails for every other one as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.console import Say
from deploy.environment.install import MARKER
from deploy.errors import EnvironmentSetupError
from deploy.files import built_folder, locked

_FACTS = "facts.json"
_GZIP, _USTAR, _USTAR_AT = b"\x1f\x8b", b"ustar", 257
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
_LIBPYTHON = re.compile(r"lib/libpython(\d+\.\d+)\.so\.\d+\.\d+")
_STDLIB = re.compile(r"lib/python(\d+\.\d+)(?:/.*)?")
_NUMPY = re.compile(
    r"lib/python\d+\.\d+/site-packages/numpy-(\d[^-/]*?)(?:\.dist-info|-[^/]*\.egg-info)(?:/.*)?"
)
_REPACK = "pack it with conda-pack: conda-pack --name ENVIRONMENT --output environment.tar.gz"
# A block of a file system; the last one of each file is half empty on average.
_BLOCK = 4096


class GivenEnvironment(BaseModel):
    """What is known of an environment.

    Attributes:
        path: The archive, or the folder.
        packed: Whether it is an archive.
        activates: Whether it has what Triton sources before it starts a stub.
        python: ``X.Y`` of its Python; None if that is not where it usually is.
        numpy: Version of its numpy; None if none is found.
        libpython: The shared library of its Python, on this host; None if it has none.
        virtual: Whether it is a virtual environment, whose Python lies elsewhere.
        unpacked_bytes: What an archive takes when it is unpacked; 0 for a folder.
        digest: The kit's name for its contents; None if the kit has not made it.
    """

    model_config = ConfigDict(frozen=True)

    path: Path
    packed: bool
    activates: bool = False
    python: str | None = None
    numpy: str | None = None
    libpython: Path | None = None
    virtual: bool = False
    unpacked_bytes: int = 0
    digest: str | None = None


def look_into(path: Path, cache: Path, say: Say) -> GivenEnvironment:
    """Return what is known of an environment.

    An archive is read once, which also shows whether it is whole; what was found is kept.

    Args:
        path: The archive or folder.
        cache: The kit's cache folder.
        say: Is told what happens.

    Raises:
        EnvironmentSetupError: If it is not there, or no archive that Triton can unpack.
    """
    try:
        if path.is_dir():
            return _look_into_folder(path)
        _check_kind(path)
        status = path.stat()
    except OSError as error:
        raise EnvironmentSetupError(f"execution environment {path}: {error.strerror}") from None
    seen = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    kept = cache / "packed" / hashlib.sha256(seen.encode()).hexdigest()[:16]
    with locked(kept.with_suffix(".lock")):
        try:
            return GivenEnvironment.model_validate_json((kept / _FACTS).read_bytes())
        except (OSError, ValidationError):
            pass
        say(f"looking into {path.name}")
        with built_folder(kept) as folder:
            facts = _look_into_archive(path, folder, kept)
            (folder / _FACTS).write_text(facts.model_dump_json(), encoding="utf-8")
    return facts


def check_usable(given: GivenEnvironment, *, numpy_below: int, in_container: bool) -> None:
    """Check what every model of an environment needs.

    Args:
        given: The environment.
        numpy_below: The first major version of numpy that the server's stubs cannot use.
        in_container: Whether the server runs in a container.

    Raises:
        EnvironmentSetupError: Naming what is wrong with it.
    """
    name = f"execution environment {given.path}"
    if not given.activates:
        root = "its archive's root" if given.packed else "it"
        raise EnvironmentSetupError(f"{name} is none: {root} has no bin/activate", _REPACK)
    if given.virtual and in_container:
        raise EnvironmentSetupError(
            f"{name} is a virtual environment, whose Python lies outside of it: "
            "a container does not see that",
            _REPACK,
        )
    if given.python is not None and given.libpython is None and not given.virtual:
        raise EnvironmentSetupError(
            f"{name} has no libpython{given.python}.so, which its stub loads", _REPACK
        )
    if given.numpy is None:
        if given.python is not None and not given.virtual:
            raise EnvironmentSetupError(
                f"{name} has no numpy, which every stub imports", f"numpy < {numpy_below} in it"
            )
    elif int(given.numpy.partition(".")[0]) >= numpy_below:
        raise EnvironmentSetupError(
            f"{name} has numpy {given.numpy}, with which this Triton answers empty tensors",
            f"numpy < {numpy_below} in it",
        )


def _check_kind(path: Path) -> None:
    """Check that a file is a tar, or one compressed by gzip: Triton reads no other kind."""
    with path.open("rb") as stream:
        head = stream.read(512)
    if head.startswith(_GZIP) or head[_USTAR_AT:].startswith(_USTAR):
        return
    kind = next((kind for magic, kind in _OTHERS.items() if head.startswith(magic)), None)
    what = f"a {kind} archive" if kind is not None else "no archive"
    raise EnvironmentSetupError(
        f"execution environment {path} is {what}: Triton reads tar.gz and plain tar only", _REPACK
    )


def _look_into_folder(path: Path) -> GivenEnvironment:
    library = path / "lib"
    found = [path / "bin" / "activate", path / "pyvenv.cfg", *library.glob("libpython*")]
    found += [*library.glob("python3.*"), *library.glob("python3.*/site-packages/numpy-*")]
    names = [str(p.relative_to(path)) for p in found if p.exists()]
    marker = path / MARKER
    facts = _facts(path, names, packed=False)
    libpython = next((n for n in names if _LIBPYTHON.fullmatch(n)), None)
    return facts.model_copy(
        update={
            "libpython": path / libpython if libpython is not None else None,
            "digest": _digest(marker.read_bytes()) if marker.is_file() else None,
        }
    )


def _look_into_archive(path: Path, folder: Path, kept: Path) -> GivenEnvironment:
    """Read an archive to its end; copy its libpython to ``folder``, which becomes ``kept``."""
    names: list[str] = []
    libpython: Path | None = None
    digest, size = None, 0
    try:
        with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                names.append(name)
                size += -(-member.size // _BLOCK) * _BLOCK
                if not member.isfile():
                    continue
                content = tar.extractfile(member)
                assert content is not None
                if _LIBPYTHON.fullmatch(name):
                    libpython = kept / Path(name).name
                    with (folder / libpython.name).open("wb") as copy:
                        shutil.copyfileobj(content, copy)
                elif name == MARKER:
                    digest = _digest(content.read())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise EnvironmentSetupError(
            f"execution environment {path} is cut off or damaged: {error}",
            "copy or pack it again and compare its sha256",
        ) from None
    return _facts(path, names, packed=True).model_copy(
        update={"libpython": libpython, "digest": digest, "unpacked_bytes": size}
    )


def _facts(path: Path, names: Iterable[str], *, packed: bool) -> GivenEnvironment:
    found = set(names)
    python = next((m[1] for name in found if (m := _STDLIB.fullmatch(name))), None)
    numpy = next((m[1] for name in found if (m := _NUMPY.fullmatch(name))), None)
    return GivenEnvironment(
        path=path,
        packed=packed,
        activates="bin/activate" in found,
        python=python,
        numpy=numpy,
        virtual="pyvenv.cfg" in found,
    )


def _digest(marker: bytes) -> str | None:
    try:
        return str(json.loads(marker)["digest"])
    except (ValueError, KeyError, TypeError):
        return None
