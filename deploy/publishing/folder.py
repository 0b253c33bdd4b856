"""A folder that other hosts see: one folder for each release, and a link to the one that serves.

``DEST/3/numl.sif`` (or ``DEST/3/numl``, a sandbox), ``DEST/3/release.json``, ``DEST/current -> 3``.
A release appears by one rename and is never changed; the link is replaced atomically.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from deploy.artefacts.labels import find_source
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.statements import provenance_of, sbom_of
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.files import built_folder, remove_folder, sha256_of
from deploy.host.paths import CHECKOUT
from deploy.host.programs import run
from deploy.host.room import size
from deploy.publishing.built import built_sif, check_sif
from deploy.publishing.place import (
    Entry,
    Listing,
    Order,
    Outcome,
    Place,
    as_time,
    nothing_published,
    rollback_target,
)

RECORD = "release.json"
CURRENT = "current"

_NAMES = {"sif": "numl.sif", "sandbox": "numl"}
_BLOCK = 1 << 22
_WHERE = "publish where this user can write; to a CVMFS, after cvmfs_server transaction"
_ROOM = "make room there (df -h), then run the command again"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _WHERE),
}


class Record(BaseModel, frozen=True, extra="forbid"):
    """What a release is: the content of its ``release.json``.

    Attributes:
        sha256: Digest of the ``.sif``, also where it was unpacked.
        bytes: Size of the ``.sif``.
    """

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    created: AwareDatetime
    revision: str
    form: Literal["sif", "sandbox"]
    source: str
    sha256: str
    bytes: int

    @property
    def name(self) -> str:
        return _NAMES[self.form]


class FolderPlace(Place):
    """Images in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, order: Order, console: Console) -> Outcome:
        """Copy a verified ``.sif`` there, run its own check from there, and switch to it."""
        sif, artefact = built_sif(order)
        digest = artefact.sha256
        form: Literal["sif", "sandbox"] = "sandbox" if order.sandbox else "sif"
        if not self._root.is_dir():
            raise PublishError(f"{self._root}: no such folder", f"mkdir {self._root}")
        with self._alone():
            releases = self._releases()
            there = [each for each in releases if (each.sha256, each.form) == (digest, form)]
            if there:
                return self._switch(there[-1], dry_run=order.dry_run, brought=None)
            new = Record(
                number=max(self._numbers(), default=0) + 1,
                created=datetime.now(timezone.utc).replace(microsecond=0),
                revision=find_source(CHECKOUT).revision,
                form=form,
                source=sif.name,
                sha256=digest,
                bytes=sif.stat().st_size,
            )
            if not order.dry_run:
                with console.step("publish") as say:
                    self._bring(sif, artefact, new, console, say)
            return self._switch(new, dry_run=order.dry_run, brought=sif)

    def listing(self, server: str | None) -> Listing:
        """Return the releases; a dangling link is a problem."""
        _refuse_servers((server,) if server is not None else ())
        serving, releases = self._serving(), self._releases()
        problems = []
        if releases and serving not in [each.number for each in releases]:
            problems.append(f"{self._root / CURRENT} points to no release; publish again")
        entries = (
            Entry(
                release=str(each.number),
                created=as_time(each.created),
                revision=each.revision,
                what=f"{each.form} of {each.source}",
                bytes=each.bytes,
                serving=each.number == serving,
            )
            for each in releases
        )
        return Listing(tuple(entries), tuple(problems))

    def rollback(self, to: str | None, *, dry_run: bool) -> Outcome:
        """Switch the link to an older release."""
        self._require()
        with self._alone():
            releases = {each.number: each for each in self._releases()}
            if not releases:
                raise nothing_published(self._root)
            number = rollback_target(list(releases), self._serving(), to)
            return self._switch(releases[number], dry_run=dry_run, brought=None)

    def prune(self, servers: tuple[str, ...], console: Console, *, dry_run: bool) -> Outcome:
        """Remove the files of all releases but the one that serves and the one before it."""
        _refuse_servers(servers)
        with self._alone():
            releases, serving = self._releases(), self._serving()
            before = [each.number for each in releases if each.number < (serving or 0)][-1:]
            kept = [*before, *([serving] if serving else [])]
            old = [each for each in releases if serving and each.number not in kept]
            for each in [] if dry_run else old:
                # The record stays, so that the number is not given again.
                path = self._root / str(each.number) / each.name
                path.unlink() if each.form == "sif" else remove_folder(path)
            numbers = ", ".join(str(each.number) for each in old)
            done = f"{'would remove' if dry_run else 'removed'} release {numbers}"
            facts = {"kept": kept, "removed": 0 if dry_run else len(old)}
            line = done if old else "nothing to remove"
            return Outcome(bool(old) and not dry_run, str(serving), (line,), facts)

    def _bring(
        self, sif: Path, artefact: Artefact, new: Record, console: Console, say: Say
    ) -> None:
        with built_folder(self._root / str(new.number)) as folder:
            target = folder / new.name
            if new.form == "sandbox":
                say("unpacking")
                run(
                    ["apptainer", "build", "--sandbox", target, sif],
                    failed=f"cannot unpack {sif}",
                    remedy="publish the .sif itself (without --sandbox)",
                    error=PublishError,
                )
                target.chmod(0o755)
            else:
                with console.progress("kB copied") as advance, target.open("wb") as copy:
                    with sif.open("rb") as stream:
                        while block := stream.read(_BLOCK):
                            copy.write(block)
                            advance(copy.tell() // 1000, new.bytes // 1000, "")
                    copy.flush()
                    os.fsync(copy.fileno())
                target.chmod(0o644)
                if sha256_of(target) != new.sha256:
                    raise PublishError(
                        f"{target} differs from what was copied there", "check the disk"
                    )
            say("checking its models against their reference outputs")
            check_sif(target)
            for name in (sbom_of(artefact), provenance_of(artefact)):
                if (sif.parent / name).is_file():
                    shutil.copyfile(sif.parent / name, folder / name)
                    (folder / name).chmod(0o644)
            (folder / RECORD).write_text(new.model_dump_json(indent=1) + "\n", encoding="utf-8")
            (folder / RECORD).chmod(0o644)

    def _switch(self, to: Record, *, dry_run: bool, brought: Path | None) -> Outcome:
        """Point the link at a release."""
        before, number = self._serving(), str(to.number)
        facts = {"before": before, "serving": to.number, "sha256": to.sha256}
        facts["path"] = str(self._root / CURRENT / to.name)
        if before == to.number:
            line = f"release {number} is already there with the same digest, and serves"
            return Outcome(False, number, (line,), facts)
        signed = "" if to.sha256 else ", once signed,"
        come = f"{brought.name} ({size(to.bytes)}){signed} as " if brought is not None else ""
        if dry_run:
            line = f"publish {come}release {number} and switch to it"
            line = f"would {line if come else f'switch to release {number}'}"
            return Outcome(False, number, (line,), facts)
        link = self._root / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(number)
        link.replace(self._root / CURRENT)
        lines = (f"published {come}release {number}" if come else f"release {number} serves",)
        return Outcome(True, number, (*lines, f"start it: apptainer run {facts['path']}"), facts)

    def _releases(self) -> list[Record]:
        """Return the releases whose files are there, oldest first."""
        found = []
        for number in self._numbers():
            path = self._root / str(number) / RECORD
            try:
                record = Record.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                continue
            except ValidationError:
                raise PublishError(
                    f"{path} was not written by the kit", "publish to another folder"
                ) from None
            if (path.parent / record.name).exists():
                found.append(record)
        return found

    def _require(self) -> None:
        if not self._root.is_dir():
            raise PublishError(
                f"{self._root}: no such folder", "correct it, or publish to it first"
            )

    def _numbers(self) -> list[int]:
        self._require()
        return sorted(int(path.name) for path in self._root.iterdir() if path.name.isdecimal())

    def _serving(self) -> int | None:
        link = self._root / CURRENT
        name = str(link.readlink()) if link.is_symlink() else ""
        return int(name) if name.isdecimal() else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder itself, so that no lock file is left in it."""
        try:
            opened = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise PublishError(f"{self._root}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PublishError(
                    f"another publish or rollback is at work in {self._root}",
                    "wait until it has finished",
                ) from None
            current = self._root / CURRENT
            if current.exists() and not current.is_symlink():
                raise PublishError(
                    f"{current} is not a link made by the kit", "publish to another folder"
                )
            yield
        except OSError as error:
            cause = f"cannot write to {self._root}: {error.strerror or error}"
            raise PublishError(cause, _REMEDIES.get(error.errno or 0)) from None
        finally:
            os.close(opened)


def _refuse_servers(servers: tuple[str, ...]) -> None:
    if servers:
        raise DeploymentError(
            "--url: a server does not say which .sif it was started from", "leave it out"
        )
