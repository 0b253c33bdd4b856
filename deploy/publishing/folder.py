"""A folder that other hosts see: one folder for each release, and a link to the one that serves.

``DEST/3/numl.sif`` (or ``DEST/3/numl``, a sandbox), ``DEST/published.json``, ``DEST/current -> 3``.
A release appears by one rename and is never changed; then the statement is replaced, then the link.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import find_source
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.statements import provenance_of, sbom_of
from deploy.host.console import Console, Say
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.files import (
    built_folder,
    partials,
    read_most,
    remove_folder,
    sha256_of,
    write_atomically,
)
from deploy.host.paths import CHECKOUT
from deploy.host.programs import run
from deploy.host.room import size
from deploy.publishing.built import built_sif, check_sif
from deploy.publishing.lock import alone_in
from deploy.publishing.place import (
    Listing,
    Look,
    Order,
    Outcome,
    Place,
    Signing,
    entries_of,
    nothing_published,
)
from deploy.publishing.records import MARK, RECORD, of_images, read_record, read_records
from deploy.publishing.signed import Change, Stated, changing, current_of
from numl_formats.published import Image, Published, Release
from numl_formats.statement import LARGEST, NAME
from numl_formats.trust import LARGEST_SIGNATURE, SIGNATURES, signature_path

CURRENT, _NEW_LINK = "current", ".numlkit.current"
_BLOCK = 1 << 22
_WHERE = "publish where this user can write; to a CVMFS, after cvmfs_server transaction"
_ROOM = "make room there (df -h), then run the command again"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _WHERE),
}


class FolderPlace(Place):
    """Images in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, order: Order, console: Console) -> Outcome:
        """Copy a verified ``.sif`` there, run its own check from there, and switch to it."""
        if order.with_code:
            raise DeploymentError("--with-code is for a bucket: an image has its models' code")
        sif, artefact = built_sif(order)
        if not self._root.is_dir():
            raise PublishError(f"{self._root}: no such folder", f"mkdir -p {self._root}")
        with self._change(order.signing, order.verify, dry_run=order.dry_run) as change:
            there = self._there(artefact, order, change)
            if there is not None:
                return self._publish_again(there, change, order)
            # Of one that a dry run would sign, the digest is not known yet.
            digest = artefact.sha256 or "0" * 64
            image = Image(_form(order), sif.name, digest, sif.stat().st_size)
            new = Release(self._next(), change.now, find_source(CHECKOUT).revision, image=image)
            if not order.dry_run:
                with console.step("publish") as say:
                    self._bring(sif, artefact, new, console, say)
            return self._switch(change, change.published(new), dry_run=order.dry_run, brought=sif)

    def listing(self, look: Look) -> Listing:
        """Return the releases; one whose files differ, or a link elsewhere, is a problem."""
        _refuse_servers((look.server,) if look.server is not None else ())
        self._require()
        published = of_images(self._root, current_of(self._stated(), look.verify))
        if published is None:
            return Listing(())
        damaged = [
            each.number for each in published.releases if not self._is_whole(each, read=look.check)
        ]
        problems = [f"release {number}: its image is missing or damaged" for number in damaged]
        if self._linked() != published.serving:
            problems.append(
                f"{self._root / CURRENT} does not point to release {published.serving}: a publish "
                "or rollback was interrupted; run it again"
            )
        notes = [f"not published by the kit: {name}" for name in self._unknown(published)]
        return Listing(
            entries_of(published, damaged),
            tuple(problems),
            tuple(notes) if look.check else (),
            published.sequence,
        )

    def rollback(self, to: str | None, signing: Signing, *, dry_run: bool) -> Outcome:
        self._require()
        with self._change(signing, dry_run=dry_run) as change:
            if change.before is None:
                raise nothing_published(self._root, signing)
            half = to is None and self._is_half_back(change.before)
            new = change.renewed(change.before) if half else change.rolled_back(change.before, to)
            if not self._is_whole(new.current, read=True):
                raise PublishError(
                    f"release {new.serving} is damaged", "roll back to another (--to)"
                )
            if new.serving == change.before.serving and signing.valid_for is None:
                new = change.before
            return self._switch(change, new, dry_run=dry_run, brought=None)

    def check_prune(self, servers: tuple[str, ...]) -> None:
        _refuse_servers(servers)

    def prune(
        self, servers: tuple[str, ...], signing: Signing, console: Console, *, dry_run: bool
    ) -> Outcome:
        self.check_prune(servers)
        with self._change(signing, dry_run=dry_run) as change:
            before = change.before
            if before is None:
                return Outcome(False, "", ("nothing to remove",), {"removed": 0})
            kept = change.pruned(before)
            numbers = {release.number for release in kept.releases}
            old = [number for number in self._numbers() if number not in numbers]
            old = [number for number in old if self._is_own(number)]
            if not dry_run:
                if kept.releases != before.releases:
                    self._state_anew(change, kept)
                self._link(before.serving)  # also if a rollback was killed before it did so
                for number in old:
                    self._remove(self._root / str(number))
                self._remove_signatures()
            named = ", ".join(map(str, old))
            done = f"{'would remove' if dry_run else 'removed'} release {named}"
            facts = {"kept": sorted(numbers), "removed": 0 if dry_run else len(old)}
            line = done if old else "nothing to remove"
            return Outcome(bool(old) and not dry_run, str(before.serving), (line,), facts)

    def _there(self, artefact: Artefact, order: Order, change: Change) -> Release | None:
        """Return the newest release that is an artefact, whole."""
        form = _form(order)
        for release in reversed(change.before.releases if change.before is not None else ()):
            image = release.image
            same = image is not None and (image.sha256, image.form) == (artefact.sha256, form)
            if same and self._is_whole(release, read=True):
                return release
        return None

    def _publish_again(self, there: Release, change: Change, order: Order) -> Outcome:
        """Have a release serve that is there; renew its statement if that was asked for."""
        assert change.before is not None
        if there.number != change.before.serving:
            new = change.served_again(change.before, there.number)
        elif order.valid_for is not None:
            new = change.renewed(change.before)
        else:
            new = change.before
        return self._switch(change, new, dry_run=order.dry_run, brought=None)

    def _bring(
        self, sif: Path, artefact: Artefact, new: Release, console: Console, say: Say
    ) -> None:
        image = new.image
        assert image is not None
        with built_folder(self._root / str(new.number)) as folder:
            target = folder / image.name
            if image.form == "sandbox":
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
                            advance(copy.tell() // 1000, image.bytes // 1000, "")
                    copy.flush()
                    os.fsync(copy.fileno())
                target.chmod(0o644)
                if sha256_of(target) != image.sha256:
                    raise PublishError(
                        f"{target} differs from what was copied there", "check the disk"
                    )
            say("checking its models against their reference outputs")
            check_sif(target)
            for name in (sbom_of(artefact), provenance_of(artefact)):
                if (sif.parent / name).is_file():
                    shutil.copyfile(sif.parent / name, folder / name)
                    (folder / name).chmod(0o644)
            (folder / MARK).touch(0o644)

    def _switch(
        self, change: Change, new: Published, *, dry_run: bool, brought: Path | None
    ) -> Outcome:
        """Write a statement, and point the link at what serves."""
        to, number = new.current, str(new.serving)
        assert to.image is not None
        before = change.before.serving if change.before is not None else None
        facts = {"before": before, "serving": to.number, "sha256": to.image.sha256}
        facts["path"] = str(self._root / CURRENT / to.image.name)
        if new == change.before and self._linked() == to.number:
            line = f"release {number} is already there with the same digest, and serves"
            return Outcome(False, number, (line,), facts)
        signed = ", once signed," if dry_run and to.image.sha256 == "0" * 64 else ""
        come = f"{brought.name} ({size(to.bytes)}){signed} as " if brought is not None else ""
        if dry_run:
            line = f"publish {come}release {number} and switch to it"
            line = f"would {line if come else f'switch to release {number}'}"
            return Outcome(False, number, (line,), facts)
        if new != change.before:
            self._state_anew(change, new)
        self._link(to.number)
        line = f"published {come}release {number}" if come else f"release {number} serves"
        start = f"start it: apptainer run {facts['path']}"
        return Outcome(True, number, (line, *change.notes, start), facts)

    def _link(self, number: int) -> None:
        link = self._root / _NEW_LINK
        link.symlink_to(str(number))
        link.replace(self._root / CURRENT)

    def _state_anew(self, change: Change, new: Published) -> None:
        change.write(
            new, self._put_signature, lambda content: write_atomically(self._root / NAME, content)
        )

    def _put_signature(self, path: str, content: bytes) -> None:
        write_atomically(self._root / path, content)
        folder = (self._root / path).parent
        mode = folder.stat().st_mode
        # Servers read it as other users, whatever this one's umask.
        if mode & 0o555 != 0o555 and not folder.is_symlink():
            folder.chmod(mode | 0o555)

    def _is_whole(self, release: Release, *, read: bool) -> bool:
        """Return whether a release's image is there; if it is read, whether it is what it was."""
        assert release.image is not None
        path = self._root / str(release.number) / release.image.name
        if release.image.form == "sandbox":
            return path.is_dir()
        if not path.is_file() or path.stat().st_size != release.image.bytes:
            return False
        return not read or sha256_of(path) == release.image.sha256

    def _is_own(self, number: int) -> bool:
        """Return whether the kit has made a release's folder: only that is ever removed."""
        folder = self._root / str(number)
        made = (folder / MARK).is_file() or read_record(folder / RECORD) is not None
        return made and not folder.is_symlink()

    def _remove(self, folder: Path) -> None:
        """Remove a release's folder, its mark last: who is killed before can repeat it."""
        marks = {MARK, RECORD}
        with suppress(PermissionError):
            for path in (path for path in folder.iterdir() if path.name not in marks):
                remove_folder(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if {path.name for path in folder.iterdir()} <= marks:
            remove_folder(folder)
        if folder.exists():
            raise PublishError(f"{folder} cannot be removed whole", f"as its owner: rm -r {folder}")

    def _unknown(self, published: Published) -> list[str]:
        known = {NAME, SIGNATURES, CURRENT, *(str(each.number) for each in published.releases)}
        return sorted(
            path.name
            for path in self._root.iterdir()
            if path.name not in known and not path.name.startswith(".numlkit.")
        )

    def _remove_signatures(self) -> None:
        """Remove the signatures of statements before the current one, if it is signed."""
        stated = self._stated()
        if stated.content is None or stated.signature is None:
            return
        current = self._root / signature_path(stated.content)
        if current.parent.is_symlink():
            return  # the kit makes no such link
        for path in current.parent.glob("[0-9a-f]" * 64 + ".sig"):
            if path != current:
                path.unlink()

    def _stated(self) -> Stated:
        place = str(self._root.resolve())
        signed = any((self._root / SIGNATURES).glob("*.sig"))
        content = self._read(NAME, LARGEST + 1)
        if content is None:
            return Stated(place, None, None, signed, read_records(self._root, self._linked()))
        signature = self._read(signature_path(content), LARGEST_SIGNATURE)
        return Stated(place, content, signature, signed)

    def _read(self, name: str, most: int) -> bytes | None:
        """Return a file's content; None if there is none."""
        try:
            return read_most(self._root / name, most)
        except FileNotFoundError:
            return None
        except OSError as error:
            path = self._root / name
            raise PublishError(f"{path}: {error.strerror}", "restore it, or remove it") from None

    def _require(self) -> None:
        if not self._root.is_dir():
            raise PublishError(
                f"{self._root}: no such folder", "correct it, or publish to it first"
            )

    def _numbers(self) -> list[int]:
        return sorted({int(path.name) for path in self._root.iterdir() if path.name.isdecimal()})

    def _next(self) -> int:
        """Return a number that no release ever had; what a killed publish left is replaced."""
        published, linked = self._stated().read(), self._linked()
        last = published.last if published is not None else 0
        if linked is not None and self._is_own(linked):  # of a statement that is lost
            last = max(last, linked)
        number = last + 1
        while os.path.lexists(self._root / str(number)) and not self._is_own(number):
            number += 1
        return number

    def _is_half_back(self, published: Published) -> bool:
        """Return whether a rollback was killed before it moved the link."""
        linked = self._linked()
        there = {release.number for release in published.releases}
        return linked in there and linked not in published.served

    def _linked(self) -> int | None:
        link = self._root / CURRENT
        name = str(link.readlink()) if link.is_symlink() else ""
        return int(name) if name.isdecimal() else None

    def _clean(self) -> None:
        """Remove what a command that was killed has left."""
        (self._root / _NEW_LINK).unlink(missing_ok=True)
        signatures = self._root / SIGNATURES
        # The kit makes no link to a folder of signatures: what is there may be at work.
        there = () if signatures.is_symlink() else partials(signatures)
        for left in (*partials(self._root), *there):
            left.unlink() if left.is_file() else remove_folder(left)

    @contextmanager
    def _change(
        self, signing: Signing, named: Signer | None = None, *, dry_run: bool
    ) -> Iterator[Change]:
        """Hold the folder's lock, and yield a change to it."""
        try:
            with alone_in(self._root):
                current = self._root / CURRENT
                if current.exists() and not current.is_symlink():
                    raise PublishError(
                        f"{current} is not a link made by the kit", "publish to another folder"
                    )
                if not dry_run:
                    self._clean()
                with changing(self._stated(), signing, named) as change:
                    of_images(self._root, change.before)
                    yield change
        except OSError as error:
            files = [Path(n) for n in (error.filename, error.filename2) if isinstance(n, str)]
            elsewhere = [not p.is_relative_to(self._root) for p in files if p.is_absolute()]
            if elsewhere and all(elsewhere):
                raise  # it is not this folder that cannot be written to
            cause = f"cannot write to {self._root}: {error.strerror or error}"
            raise PublishError(cause, _REMEDIES.get(error.errno or 0)) from None


def _form(order: Order) -> Literal["sif", "sandbox"]:
    return "sandbox" if order.sandbox else "sif"


def _refuse_servers(servers: tuple[str, ...]) -> None:
    if servers:
        raise DeploymentError(
            "--url: a server does not say which .sif it was started from", "leave it out"
        )
