"""The local copy: a model repository that Triton polls, and a workshop beside it.

``FOLDER/repository`` is Triton's. In ``FOLDER/incoming``, which it does not see, files are
downloaded and versions put together; they come into the repository by a rename, whole. Weights,
cards and reference answers are downloaded; code and configurations are the image's.
``FOLDER/state.json`` says what the next start of this program goes on with.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from numl_formats.config import digest_in
from numl_formats.errors import FormatError
from numl_formats.published import File, Model, Release
from numl_formats.repository import CODE, CONFIG, NO_BYTECODE, later
from numl_formats.statement import read_release, release_as_json
from numl_sync.errors import BucketError, ReleaseError, UsageError
from numl_sync.templates import Templates
from numl_sync.trust import Accepted, read_accepted

Read = Callable[[str, int, int], Iterator[bytes]]
"""As `Bucket.read`."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered.

    Attributes:
        etag: Of the ``published.json`` that named ``wanted``, or ``serving`` if that is None.
        serving: The release that the server has answered with, last.
        wanted: The release that is to replace it; None: none.
        accepted: The newest statement that was accepted.
    """

    etag: str | None = None
    serving: Release | None = None
    wanted: Release | None = None
    accepted: Accepted | None = None


class Mirror:
    """The folder of one agent.

    Raises:
        UsageError: Another agent has it, or it cannot be written to.
    """

    def __init__(self, folder: Path, templates: Templates) -> None:
        self.repository = folder / "repository"
        self._templates = templates
        self._incoming = folder / "incoming"
        self._state = folder / "state.json"
        self._lock_file = folder / "lock"
        self._seen: set[tuple[Path, str, int]] = set()
        try:
            self.repository.mkdir(parents=True, exist_ok=True)
            if not self._lock_file.exists() and any(self.repository.iterdir()):
                # An agent removes what is not of its release.
                raise UsageError(f"{self.repository} has files that no sync agent put there")
            self._incoming.mkdir(exist_ok=True)
            self._lock = _locked(self._lock_file)
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from None

    def read_state(self) -> State:
        """Return what was remembered; nothing if that cannot be read."""
        try:
            said = json.loads(self._state.read_bytes())
            serving, wanted = (
                read_release(said[name]) if said[name] is not None else None
                for name in ("serving", "wanted")
            )
            accepted = said["accepted"]
            return State(
                said["etag"],
                serving,
                wanted,
                read_accepted(accepted) if accepted is not None else None,
            )
        except (OSError, ValueError, KeyError, TypeError, FormatError):
            return State()

    def write_state(self, state: State) -> None:
        said: dict[str, Any] = {"etag": state.etag}
        for name, release in (("serving", state.serving), ("wanted", state.wanted)):
            said[name] = release_as_json(release) if release is not None else None
        said["accepted"] = state.accepted.as_json() if state.accepted is not None else None
        self._write(self._state, json.dumps(said))

    def holds(self, release: Release) -> bool:
        """Return whether the server is given exactly this release, and perhaps older versions."""
        return bool(release.models) and all(
            self.has(name, model) and self.is_configured(name, model)
            for name, model in release.models.items()
        )

    def is_configured(self, name: str, model: Model) -> bool:
        """Return whether the server is given the configuration of a model."""
        with suppress(OSError, UnicodeDecodeError, ReleaseError):
            there = (self.repository / name / CONFIG).read_text(encoding="utf-8")
            return there == self._config(name, model)
        return False

    def digest(self, name: str, model: Model) -> str:
        """Return the digest in the configuration of a model whose version is there."""
        return digest_in(self._config(name, model))

    def has(self, name: str, model: Model) -> bool:
        """Return whether a model's version is there, every file as it must be, and no other.

        A digest is computed once in a process, and again if the file was changed since.
        """
        if not self._templates.have(name):
            return False
        place, code = self.repository / name / str(model.version), self._templates.code(name)
        fits = False
        with suppress(OSError):
            fits = (
                {path.name for path in place.iterdir()} == {*model.files, CODE, NO_BYTECODE}
                and (place / CODE).read_bytes() == code
                and all((place / p).stat().st_size == f.bytes for p, f in model.files.items())
            )
        if not fits:
            return False
        for path, file in model.files.items():
            # Nobody can set this time, unlike that of its content.
            seen = (place / path, file.sha256, (place / path).stat().st_ctime_ns)
            if seen not in self._seen:
                if _digest(place / path)[0].hexdigest() != file.sha256:
                    return False
                self._seen.add(seen)
        return True

    def make_room(self, release: Release) -> None:
        """Remove what was downloaded for another release."""
        wanted = {file.sha256 for model in release.models.values() for file in model.files.values()}
        for path in self._workshop().iterdir():
            if path.name not in wanted:
                _remove(path)

    def fetch(self, read: Read, name: str, model: Model) -> None:
        """Download a version's files, each from where it broke off.

        Raises:
            BucketError: It broke off again.
            ReleaseError: A file is not what it must be.
        """
        self.repository.mkdir(parents=True, exist_ok=True)
        self._workshop()
        for path, file in model.files.items():
            self._fetch(read, f"{name}/{model.version}/{path}", file)

    def _fetch(self, read: Read, path: str, file: File) -> None:
        # Named by what it must become: until then it is shorter.
        target = self._incoming / file.sha256
        digest, begun = _digest(target)
        have = begun
        if have < file.bytes:
            with target.open("ab") as out:
                for chunk in read(path, have, file.bytes):
                    have += len(chunk)
                    if have > file.bytes:
                        break
                    digest.update(chunk)
                    out.write(chunk)
            if have < file.bytes:
                raise BucketError(f"{path} was cut off after {have} of {file.bytes} bytes")
        elif not begun:
            target.touch()
        if have == file.bytes and digest.hexdigest() == file.sha256:
            return
        target.unlink()
        if begun:  # what was there may have been another's
            self._fetch(read, path, file)
            return
        raise ReleaseError(f"{path} is not the published file: its sha256 differs")

    def assemble(self, name: str, model: Model) -> Path:
        """Return a folder with the version's files, all downloaded, where Triton does not look.

        Raises:
            ReleaseError: Its card is none.
        """
        folder = self._incoming / f"{name}-{model.version}"
        _remove(folder)
        folder.mkdir()
        for path, file in model.files.items():
            # Copied, so that changing one model cannot affect another with the same file.
            shutil.copyfile(self._incoming / file.sha256, folder / path)
        (folder / CODE).write_bytes(self._templates.code(name))
        (folder / NO_BYTECODE).touch()
        self._templates.config(name, model.version, folder)
        return folder

    def place(self, name: str, model: Model, version: Path) -> None:
        """Give the server a version that was assembled; its configuration does not yet name it."""
        target = self.repository / name / str(model.version)
        if not target.parent.exists():
            # With its configuration, or the server would complain of its absence.
            folder = self._incoming / name
            _remove(folder)
            folder.mkdir()
            config = self._templates.config(name, model.version, version)
            (folder / CONFIG).write_text(config, encoding="utf-8")
            version.rename(folder / target.name)
            folder.rename(target.parent)
            return
        touched = None
        if target.exists():  # damaged, or from a bucket that was started afresh
            touched = later(target.parent)
            self._move_away(target)
        version.rename(target)
        if touched is not None:
            os.utime(target, ns=(touched, touched))

    def configure(self, release: Release) -> None:
        """Have the server load the release: its versions are there."""
        for name, model in release.models.items():
            if self.is_configured(name, model):
                continue
            folder = self.repository / name
            self._write(folder / CONFIG, self._config(name, model), later(folder))

    def _config(self, name: str, model: Model) -> str:
        files = self.repository / name / str(model.version)
        return self._templates.config(name, model.version, files)

    def clear(self) -> None:
        """Take every model away from the server."""
        for folder in _folders(self.repository):
            self._take_away(folder)

    def prune(self, release: Release) -> None:
        """Take away what is not of this release, and what was downloaded."""
        versions = {name: str(version) for name, version in release.versions.items()}
        for folder in _folders(self.repository):
            if folder.name not in versions:
                self._take_away(folder)
                continue
            for version in _folders(folder):
                if version.name != versions[folder.name]:
                    self._take_away(version)
        for path in self._workshop().iterdir():
            _remove(path)

    def _workshop(self) -> Path:
        # Somebody may have removed it, as it is mostly empty, or all that the folder has.
        self._incoming.mkdir(parents=True, exist_ok=True)
        if not _is_at(self._lock_file, self._lock):
            with self._lock:
                self._lock = _locked(self._lock_file)
        return self._incoming

    def _take_away(self, folder: Path) -> None:
        """Remove a folder of the repository: at once for the server, then file by file."""
        _remove(self._move_away(folder))

    def _move_away(self, folder: Path) -> Path:
        rubbish = self._workshop() / "removed"
        _remove(rubbish)
        return folder.rename(rubbish)

    def _write(self, target: Path, text: str, time_ns: int | None = None) -> None:
        partial = self._workshop() / f"{target.name}.new"
        partial.write_text(text, encoding="utf-8")
        if time_ns is not None:
            os.utime(partial, ns=(time_ns, time_ns))
        partial.replace(target)


def _locked(path: Path) -> IO[str]:
    stream = path.open("a")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path.parent}: another sync agent is using it") from None
    except OSError as error:  # which has no name
        cause = f"cannot be locked ({error.strerror}); FOLDER needs a file system with locks"
        raise OSError(error.errno, cause, str(path)) from None
    return stream


def _is_at(path: Path, stream: IO[str]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def _digest(path: Path) -> tuple[Any, int]:
    """Return the digest so far and the size of a file; those of an empty one if it is missing."""
    digest, size = hashlib.sha256(), 0
    with suppress(FileNotFoundError), path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return digest, size


def _folders(folder: Path) -> Iterable[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
