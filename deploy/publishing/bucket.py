"""A bucket of models, from which a Triton or the kit's sync agent takes them.

The order of writes keeps a partial publication from being seen: first a version's files, then the
configurations that name it, then ``published.json``. docs/publishing.md has the layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from itertools import count

from deploy.artefacts.labels import find_source
from deploy.deployment.deployment import CONFIG
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.paths import CHECKOUT
from deploy.host.room import size
from deploy.publishing.contents import Contents, keys_of
from deploy.publishing.destination import Bucket
from deploy.publishing.models import LocalModel, verified_models
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
from deploy.publishing.pointer import (
    POINTER,
    Published,
    PublishedFile,
    Release,
    pruned,
    read_pointer,
    serving,
    with_release,
)
from deploy.publishing.s3 import Store, TakenError
from deploy.publishing.servers import await_release, differences, read_goldens

_BUSY = "someone else has published or rolled back there in the meantime"
_AGAIN = "look at it with numlkit published, and run the command again"


class BucketPlace(Place):
    """Models in an S3 bucket."""

    def __init__(self, destination: Bucket) -> None:
        self._store = Store(destination)
        self._place = destination

    def publish(self, order: Order, console: Console) -> Outcome:
        """Verify the models, upload what is missing, and have them serve."""
        if order.artefact is not None or order.sandbox:
            raise DeploymentError("--image and --sandbox are for a folder: a bucket takes models")
        if order.sign is not None or order.verify is not None:
            raise DeploymentError(
                "--sign and --verify are for images and .sif files: a bucket takes models"
            )
        # Before the verification, which takes long where an environment is made.
        state = self._look()
        with ExitStack() as stack:
            with console.step("verify") as say:
                local = stack.enter_context(verified_models(order.resolved, say))
            return self._bring(local, state, order, console)

    def listing(self, server: str | None) -> Listing:
        """Return the releases; anything incomplete, or served differently, is a problem."""
        state = self._look()
        if state.published is None:
            return Listing(())
        published, problems = state.published, []
        for release in published.releases:
            for name, model in release.models.items():
                for key in state.lacks(name, model):
                    problems.append(f"release {release.number}: {key} is missing or incomplete")
        for name in self._stale(published.current, state):
            problems.append(
                f"{name}/{CONFIG} is not that of release {published.serving}: a publish or "
                "rollback was interrupted; run it again"
            )
        if server is not None and not problems:
            goldens = read_goldens(self._store, published.current)
            problems += differences(server, published.current, goldens)
        entries = (
            Entry(
                release=str(release.number),
                created=as_time(release.created),
                revision=release.revision,
                what=release.summary,
                bytes=sum(model.bytes for model in release.models.values()),
                serving=release.number == published.serving,
            )
            for release in published.releases
        )
        return Listing(tuple(entries), tuple(dict.fromkeys(problems)))

    def rollback(self, to: str | None, *, dry_run: bool) -> Outcome:
        """Point the configurations and ``published.json`` at an older release."""
        state = self._look()
        published = state.published
        if published is None:
            raise nothing_published(self._place)
        there = [release.number for release in published.releases]
        target = published.release(rollback_target(there, published.serving, to))
        for name, model in target.models.items():
            for key in state.lacks(name, model):
                raise PublishError(
                    f"release {target.number} is incomplete: {self._store.name(key)} is missing",
                    "publish it again, or roll back to another",
                )
        new = serving(published, target.number)
        stale = self._stale(target, state)
        changed = bool(stale) or new != published
        facts = {"before": published.serving, "serving": target.number}
        number = str(target.number)
        if not changed:
            return Outcome(False, number, (f"release {number} is already serving",), facts)
        if dry_run:
            return Outcome(False, number, (f"would switch to release {number}",), facts)
        self._switch(state, new, stale)
        lines = [f"release {number} serves; before: release {published.serving}"]
        for name in sorted(published.current.models.keys() - target.models.keys()):
            lines.append(
                f"{name} is not in release {number}: a Triton that polls the bucket itself "
                "keeps serving it"
            )
        return Outcome(True, number, tuple(lines), facts)

    def prune(self, servers: tuple[str, ...], console: Console, *, dry_run: bool) -> Outcome:
        """Remove versions used by neither the serving release nor the one before it."""
        state = self._look()
        published = state.published
        if published is None:
            return Outcome(False, "", ("nothing to remove",), {"removed": 0})
        kept = pruned(published)
        number = str(published.serving)
        old = state.outdated(kept)
        facts: dict[str, object] = {"kept": [release.number for release in kept.releases]}
        if not old and kept == published:
            return Outcome(False, number, ("nothing to remove",), {**facts, "removed": 0})
        total = sum(state.sizes[key] for key in old)
        gone = {r.number for r in published.releases} - {r.number for r in kept.releases}
        what = f"releases {', '.join(map(str, sorted(gone)))}: " if gone else ""
        what += f"{len(old)} files ({size(total)}) that no release needs"
        if not servers:
            line = f"kept {what}: name each server with --url, so that it can be asked first"
            return Outcome(False, number, (line,), {**facts, "removed": 0})
        if dry_run:
            return Outcome(False, number, (f"would remove {what}",), {**facts, "removed": 0})
        goldens = read_goldens(self._store, published.current)
        with console.step("ask the servers") as say:
            for server in servers:
                await_release(server, published.current, goldens, say)
        if kept != published:
            self._replace_pointer(state, kept)
        self._store.remove(old)
        return Outcome(True, number, (f"removed {what}",), {**facts, "removed": len(old)})

    def _look(self) -> Contents:
        objects = self._store.objects()
        stored = self._store.read(POINTER) if POINTER in objects else None
        published = None
        if stored is not None:
            published = read_pointer(stored.content, self._store.name(POINTER))
        return Contents(stored, published, objects)

    def _bring(
        self, local: Mapping[str, LocalModel], state: Contents, order: Order, console: Console
    ) -> Outcome:
        before = state.published
        new = self._plan(local, state)
        missing = {
            key: (local[name], key.split("/", 2)[2], file)
            for name, model in new.current.models.items()
            for key, file in keys_of(name, model).items()
            if key in state.lacks(name, model)
        }
        total = sum(file.bytes for _, _, file in missing.values())
        stale = self._stale(new.current, state)
        number = str(new.serving)
        facts = {"uploaded": len(missing), "bytes": total, "models": new.current.versions}
        if before is not None and new == before and not stale:
            line = f"release {number} is already there with the same digests, and serves"
            return Outcome(False, number, (line,), facts)
        what = f"release {number}: {new.current.summary}"
        if order.dry_run:
            line = f"would publish {what}; {len(missing)} files ({size(total)}) to upload"
            return Outcome(False, number, (line,), facts)
        done = 0
        with console.progress("kB uploaded") as advance:
            for key, (model, path, file) in missing.items():
                so_far = done

                def sent(count: int, so_far: int = so_far, key: str = key) -> None:
                    advance((so_far + count) // 1000, total // 1000, key)

                self._upload(key, model, path, file, sent)
                done += file.bytes
        self._switch(state, new, stale)
        line = f"published {what}; {len(missing)} files ({size(total)}) uploaded"
        return Outcome(True, number, (line,), facts)

    def _plan(self, local: Mapping[str, LocalModel], state: Contents) -> Published:
        """Return the pointer once ``local`` is published.

        Models that are not published now stay as they are. A version that is there with the same
        files is reused.
        """
        before = state.published
        first = before.last + 1 if before is not None else 1
        there = {name: self._there(name, model, state) for name, model in local.items()}
        brought = {name: model for name, model in local.items() if there[name] is None}
        # What an aborted publish of other files has left is not touched.
        number = next(
            number
            for number in count(first)
            if all(self._is_ours(name, number, model, state) for name, model in brought.items())
        )
        kept = dict(before.current.models) if before is not None else {}
        models = kept | {n: model.as_version(there[n] or number) for n, model in local.items()}
        for name in models.keys() - local.keys():
            for key in state.lacks(name, models[name]):
                raise PublishError(
                    f"{self._store.name(key)} is missing or incomplete",
                    f"publish {name} too (--models), or another release",
                )
        if before is not None and models == before.current.models:
            return before
        return with_release(
            before,
            number=number,
            created=datetime.now(timezone.utc).replace(microsecond=0),
            revision=find_source(CHECKOUT).revision,
            models=dict(sorted(models.items())),
        )

    def _there(self, name: str, model: LocalModel, state: Contents) -> int | None:
        """Return the version that has a model's files; None if none has, or it was changed."""
        version = state.same_version(name, model.files)
        for path, file in model.files.items() if version is not None else ():
            key = f"{name}/{version}/{path}"
            tag, content = state.objects[key].tag, (model.folder / path).read_bytes()
            # Encrypted objects have other tags: only what they hold says whether it is the same.
            other = tag not in ("", hashlib.md5(content, usedforsecurity=False).hexdigest())
            if other and self._store.content_sha256(key) != file.sha256:
                return None
        return version

    def _is_ours(self, name: str, number: int, model: LocalModel, state: Contents) -> bool:
        """Return whether a version's folder holds nothing but what would be uploaded to it."""
        folder = f"{name}/{number}/"
        for key in (key for key in state.sizes if key.startswith(folder)):
            file = model.files.get(key.removeprefix(folder))
            if file is None or file.bytes != state.sizes[key]:
                return False
            if self._store.sha256(key) != file.sha256:
                return False
        return True

    def _upload(
        self,
        key: str,
        model: LocalModel,
        path: str,
        file: PublishedFile,
        sent: Callable[[int], None],
    ) -> None:
        try:
            self._store.upload(key, model.folder / path, file.sha256, sent)
        except TakenError:
            # Someone publishing the same, or ourselves: the first response was lost.
            if self._store.sha256(key) != file.sha256:
                raise PublishError(f"{self._store.name(key)}: {_BUSY}", _AGAIN) from None

    def _stale(self, release: Release, state: Contents) -> list[str]:
        """Return the models whose ``config.pbtxt`` is not that of ``release``."""
        found = []
        for name, model in release.models.items():
            key = f"{name}/{CONFIG}"
            there = self._store.read(key) if key in state.sizes else None
            if there is None or there.content != model.config.encode():
                found.append(name)
        return found

    def _switch(self, state: Contents, new: Published, stale: Sequence[str]) -> None:
        """Have a release serve whose files are there; ``stale``: configurations to rewrite."""
        now = self._store.read(POINTER)
        if (now.content if now else None) != (state.stored.content if state.stored else None):
            raise PublishError(f"{self._place}: {_BUSY}", _AGAIN)
        self._write_configs(new.current, stale)
        if new != state.published:
            self._replace_pointer(state, new)

    def _write_configs(self, release: Release, names: Sequence[str]) -> None:
        for name in names:
            self._store.write(f"{name}/{CONFIG}", release.models[name].config.encode())

    def _replace_pointer(self, state: Contents, new: Published) -> None:
        content = new.text().encode()
        try:
            self._store.replace(POINTER, content, state.stored)
        except TakenError:
            there = self._store.read(POINTER)
            if there is not None and there.content == content:
                return  # ourselves: the first response was lost
            # The configurations are ours, and the release that serves is another's.
            with suppress(PublishError):
                now = self._look()
                if now.published is not None:
                    current = now.published.current
                    self._write_configs(current, self._stale(current, now))
            raise PublishError(f"{self._place}: {_BUSY}", _AGAIN) from None
