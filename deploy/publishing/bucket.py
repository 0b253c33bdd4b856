"""A bucket of models, from which the kit's sync agent takes them, or a Triton by itself.

The order of writes keeps a partial publication from being seen: first a version's files, then what
a Triton that polls the bucket reads, then ``published.json``. docs/publishing.md has the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import md5, sha256
from itertools import count

from deploy.artefacts.labels import find_source
from deploy.client.endpoint import Endpoint
from deploy.host.console import Console
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.paths import CHECKOUT
from deploy.host.room import size
from deploy.publishing.contents import Contents, keys_of
from deploy.publishing.destination import Bucket
from deploy.publishing.models import LocalModel, verified_models
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
from deploy.publishing.s3 import Store, TakenError
from deploy.publishing.servers import await_release, differences, read_goldens
from deploy.publishing.signed import Change, Stated, changing, current_of
from numl_formats.published import File, Model, Published, Release
from numl_formats.repository import CONFIG
from numl_formats.statement import NAME
from numl_formats.trust import SIGNATURES, signature_path

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
        if order.verify is not None and order.sign is None:
            raise DeploymentError(
                "--verify is for what was signed when it was built: models are signed here",
                "--sign KEY",
            )
        if order.with_code and order.sign is not None:
            raise DeploymentError(
                "--with-code is for a Triton that polls the bucket by itself, which checks no "
                "signature",
                "leave out --with-code or --sign",
            )
        # Before the verification, which takes long where an environment is made.
        state = self._look()
        with ExitStack() as stack:
            change = stack.enter_context(changing(state.stated, order.signing, order.verify))
            with console.step("verify") as say:
                models = verified_models(order.resolved, say, with_code=order.with_code)
                local = stack.enter_context(models)
            return self._bring(local, state, change, order, console)

    def listing(self, look: Look) -> Listing:
        """Return the releases; anything damaged, or served differently, is a problem."""
        state = self._look()
        published = current_of(state.stated, look.verify)
        if published is None:
            return Listing(())
        problems, damaged = [], set()
        read: dict[str, bool] = {}  # whether a file is whole
        for release in reversed(published.releases):
            # What serves is always read; the rest only if asked.
            serves = release.number == published.serving
            for key in self._damaged(release.models, state, read if look.check or serves else None):
                damaged.add(release.number)
                problems.append(f"release {release.number}: {key} is missing or damaged")
        for name in self._stale(published.current, state):
            problems.append(
                f"{name}/{CONFIG} is not that of release {published.serving}: a publish or "
                "rollback was interrupted; run it again"
            )
        notes = []
        if look.check:
            notes = [f"not published by the kit: {key}" for key in state.unknown(published)]
        if look.server is not None and not problems:
            goldens = read_goldens(self._store, published.current)
            problems += differences(look.server, published.current, goldens)
        entries, found = entries_of(published, damaged), tuple(dict.fromkeys(problems))
        return Listing(entries, found, tuple(notes), published.sequence)

    def rollback(self, to: str | None, signing: Signing, *, dry_run: bool) -> Outcome:
        state = self._look()
        with changing(state.stated, signing) as change:
            published = change.before
            if published is None:
                raise nothing_published(self._place, signing)
            new = change.rolled_back(published, to)
            target, number = new.current, str(new.serving)
            for key in self._damaged(target.models, state, {}):
                raise PublishError(
                    f"release {number} is damaged: {self._store.name(key)}",
                    "publish it again, or roll back to another (--to)",
                )
            stale = self._stale(target, state)
            facts = {"before": published.serving, "serving": target.number}
            same = published.serving == target.number
            if same and not stale and signing.valid_for is None:
                return Outcome(False, number, (f"release {number} is already serving",), facts)
            if dry_run:
                line = f"would {'renew' if same else 'switch to'} release {number}"
                return Outcome(False, number, (line,), facts)
            self._switch(state, change, new, stale)
        line = f"release {number} serves as before"
        if not same:
            line = f"release {number} serves; before: release {published.serving}"
        lines = (line, *state.left_alone(new), *change.notes)
        return Outcome(True, number, lines, facts)

    def check_prune(self, servers: tuple[str, ...]) -> None:
        """Refuse what is no server's address."""
        for server in servers:
            Endpoint.parse(server)

    def prune(
        self, servers: tuple[str, ...], signing: Signing, console: Console, *, dry_run: bool
    ) -> Outcome:
        """Remove what neither the serving release nor the one that served before it needs."""
        state = self._look()
        with changing(state.stated, signing) as change:
            published = change.before
            if published is None:
                return Outcome(False, "", ("nothing to remove",), {"removed": 0})
            kept = change.pruned(published)
            number = str(published.serving)
            gone = {r.number for r in published.releases} - {r.number for r in kept.releases}
            old = state.unneeded(published, kept)
            left = [key for key in state.unfinished(kept) if key not in old]
            old += [key for key in left if self._store.is_own(key)]
            signatures = state.old_signatures(kept)
            # One may be that of the statement before, which servers are still reading.
            old += signatures if old or gone or len(signatures) > 1 else []
            facts: dict[str, object] = {"kept": [release.number for release in kept.releases]}
            if not old and not gone:
                return Outcome(False, number, ("nothing to remove",), {**facts, "removed": 0})
            total = sum(state.sizes[key] for key in old)
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
            # Always: a signature may be that of a statement which somebody is about to write.
            self._state_anew(state, change, kept)
            self._store.remove(old)
        return Outcome(True, number, (f"removed {what}",), {**facts, "removed": len(old)})

    def _look(self) -> Contents:
        # Before they are listed: what it names was written before it.
        content = self._store.read(NAME)
        objects = self._store.objects()
        signed = any(key.startswith(f"{SIGNATURES}/") for key in objects)
        signature = None
        if content is not None and signed:
            signature = self._store.read(signature_path(content))
        return Contents(Stated(str(self._place), content, signature, signed), objects)

    def _damaged(
        self, models: Mapping[str, Model], state: Contents, read: dict[str, bool] | None
    ) -> list[str]:
        """Return the keys of a release's files that are missing or not whole, given its models.

        Args:
            read: Whether files that were read before are whole, to which more are added; None:
                only lengths are compared.
        """
        found = []
        for name, model in models.items():
            lacking = state.lacks(name, model)
            for key, file in keys_of(name, model).items():
                if key in lacking:
                    found.append(key)
                elif read is not None:
                    if key not in read:
                        read[key] = self._store.sha256(key) == file.sha256
                    if not read[key]:
                        found.append(key)
        return found

    def _bring(
        self,
        local: Mapping[str, LocalModel],
        state: Contents,
        change: Change,
        order: Order,
        console: Console,
    ) -> Outcome:
        new = self._plan(local, state, change)
        unchanged = new == change.before
        if unchanged and order.valid_for is not None:
            new = change.renewed(new)
        brought = {
            key: (local[name], file)
            for name, model in new.current.models.items()
            for key, file in keys_of(name, model).items()
            if key in state.lacks(name, model)
        }
        total = sum(file.bytes for _, file in brought.values())
        stale = self._stale(new.current, state)
        number = str(new.serving)
        facts = {"uploaded": len(brought), "bytes": total, "models": new.current.versions}
        if new == change.before and not stale:
            line = f"release {number} is already there with the same digests, and serves"
            return Outcome(False, number, (line,), facts)
        what = f"release {number}: {new.current.summary}"
        if order.dry_run:
            line = f"would publish {what}; {len(brought)} files ({size(total)}) to upload"
            return Outcome(False, number, (line,), facts)
        done = 0
        with console.progress("kB uploaded") as advance:
            for key, (model, file) in brought.items():
                self._upload(key, model, file)
                done += file.bytes
                advance(done // 1000, total // 1000, key)
        self._switch(state, change, new, stale)
        line = f"published {what}; {len(brought)} files ({size(total)}) uploaded"
        if unchanged:
            line = f"release {number} serves as before"
        lines = (line, *state.left_alone(new), *change.notes)
        return Outcome(True, number, lines, facts)

    def _plan(self, local: Mapping[str, LocalModel], state: Contents, change: Change) -> Published:
        """Return the statement once ``local`` is published.

        Models that are not published now stay as they are. A version that is there with the same
        files is reused.
        """
        before = change.before
        given = state.stated.read() if before is None else before
        there = {name: self._there(name, model, state, before) for name, model in local.items()}
        brought = {name: model for name, model in local.items() if there[name] is None}
        # What an aborted publish of other files has left is not touched.
        number = next(
            number
            for number in count(given.last + 1 if given is not None else 1)
            if all(self._is_ours(name, number, model, state) for name, model in brought.items())
        )
        models = {n: model.as_version(there[n] or number) for n, model in local.items()}
        for name, model in (given.current.models if given is not None else {}).items():
            if name in local:
                continue
            if before is None:
                raise PublishError(
                    f"{name} was published unsigned: signing it would vouch for whoever wrote it",
                    f"publish {name} too (--models)",
                )
            for key in self._damaged({name: model}, state, {}):
                raise PublishError(
                    f"{self._store.name(key)} is missing or damaged",
                    f"publish {name} too (--models), or another release",
                )
            models[name] = model
        if before is not None and models == before.current.models:
            return before
        release = Release(
            number, change.now, find_source(CHECKOUT).revision, dict(sorted(models.items()))
        )
        return change.published(release)

    def _there(
        self, name: str, model: LocalModel, state: Contents, before: Published | None
    ) -> int | None:
        """Return the version that has a model's files; None if none has, or it was changed."""
        for release in reversed(before.releases if before is not None else ()):
            there = release.models.get(name)
            if there is None or model.as_version(there.version) != there:
                continue
            if state.lacks(name, there):
                continue
            for key, file in keys_of(name, there).items():
                content = model.content(there.version, key.split("/", 2)[2])
                tag = state.objects[key].tag
                # Encrypted objects have other tags: only what they hold tells.
                same = tag == md5(content, usedforsecurity=False).hexdigest()
                if not same and self._store.sha256(key) != file.sha256:
                    return None
            return there.version
        return None

    def _is_ours(self, name: str, number: int, model: LocalModel, state: Contents) -> bool:
        """Return whether a version's folder holds nothing but what would be uploaded to it."""
        folder, files = f"{name}/{number}/", keys_of(name, model.as_version(number))
        for key in (key for key in state.sizes if key.startswith(folder)):
            file = files.get(key)
            if file is None or file.bytes != state.sizes[key]:
                return False
            if self._store.sha256(key) != file.sha256:
                return False
        return True

    def _upload(self, key: str, model: LocalModel, file: File) -> None:
        _, version, path = key.split("/", 2)
        content = model.content(int(version), path)
        try:
            self._store.upload(key, content, file.sha256)
        except TakenError:
            # Someone publishing the same, or ourselves: the first response was lost.
            if self._store.sha256(key) != file.sha256:
                raise PublishError(f"{self._store.name(key)}: {_BUSY}", _AGAIN) from None

    def _stale(self, release: Release, state: Contents) -> list[str]:
        """Return the models whose ``config.pbtxt`` is not that of ``release``, which has one."""
        found = []
        for name, model in release.models.items():
            if CONFIG in model.code:
                key = f"{name}/{CONFIG}"
                there = self._store.sha256(key) if key in state.sizes else None
                if there != model.code[CONFIG].sha256:
                    found.append(name)
        return found

    def _switch(
        self, state: Contents, change: Change, new: Published, stale: Sequence[str]
    ) -> None:
        """Have a release serve whose files are there; ``stale``: configurations to rewrite."""
        self._refuse_changed(state)
        try:
            self._write_configs(new.current, stale)
        except PublishError:
            self._refuse_changed(state)
            raise
        if new != change.before:
            self._state_anew(state, change, new)

    def _refuse_changed(self, state: Contents) -> None:
        if self._store.read(NAME) != state.stated.content:
            raise PublishError(f"{self._place}: {_BUSY}", _AGAIN)

    def _write_configs(self, release: Release, names: Sequence[str]) -> None:
        for name in names:
            model = release.models[name]
            key = f"{name}/{model.version}/{CONFIG}"
            content = self._store.read(key)
            if content is None or sha256(content).hexdigest() != model.code[CONFIG].sha256:
                cause = f"{self._store.name(key)} is missing or damaged"
                raise PublishError(cause, "publish --with-code again")
            self._store.write(f"{name}/{CONFIG}", content)

    def _state_anew(self, state: Contents, change: Change, new: Published) -> None:
        def replaced(content: bytes) -> None:
            try:
                self._store.replace(NAME, content, state.stated.content)
            except TakenError:
                if self._store.read(NAME) == content:
                    return  # ourselves: the first response was lost
                # The configurations are ours, and the release that serves is another's.
                with suppress(PublishError):
                    now = self._look()
                    if (published := now.stated.read()) is not None:
                        current = published.current
                        self._write_configs(current, self._stale(current, now))
                raise PublishError(f"{self._place}: {_BUSY}", _AGAIN) from None

        change.write(new, self._store.write, replaced)
