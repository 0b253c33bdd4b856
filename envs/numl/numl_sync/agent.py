"""Brings the release that serves to the server, step by step.

Any step may fail or be interrupted; it is then retried, and what was done stays done. The server is
given files first and a configuration that names them last; what it answered with before is taken
away only when it answers with the new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from numl_formats.errors import StatementError
from numl_formats.published import Model, Release
from numl_formats.trust import refuse_expired
from numl_sync.bucket import Bucket
from numl_sync.errors import BucketError, ReleaseError
from numl_sync.mirror import Mirror, State
from numl_sync.server import Server
from numl_sync.status import Status
from numl_sync.templates import Templates
from numl_sync.trust import Trust

REPEAT_S = 60.0
"""A failure that lasts is said so often (s)."""
LOAD_S = 120.0
"""How long (s) a running server may take to load a release, if there is one to go back to."""
RETRY_S = 1800.0
"""When a release that was refused before the server saw it is tried again (s)."""
PAUSE_S = 0.5
"""How often (s) the server is asked whether it has loaded a release."""
_STATEMENT = "statement"


class Agent:
    """Keeps a mirror like its bucket.

    Args:
        check: Raises a `ReleaseError` unless the versions in these folders give golden answers;
            calls its second argument from time to time.
        say: Takes one line for the log.
        poll_s: Time (s) between two looks at the bucket.
        clock: Monotonic clock, in seconds.
        today: The time of day, for statements that expire.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: Mirror,
        server: Server,
        *,
        trust: Trust,
        templates: Templates,
        check: Callable[[Sequence[Path], Callable[[], None]], None],
        say: Callable[[str], None],
        poll_s: float,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.status = Status()
        self.failure: str | None = None
        self._bucket, self._mirror, self._server = bucket, mirror, server
        self._trust, self._templates, self._today = trust, templates, today
        self._check, self._say, self._poll_s, self._clock = check, say, poll_s, clock
        self._next_look = clock()
        self._away_since: float | None = None
        self._loading_since: float | None = None
        self._silent_since: float | None = None
        self._retry_at: float | None = None
        # What to fall back to while the server has nothing, the newest first.
        self._older: list[Release] = []
        self._told: dict[str, float] = {}
        state = self._trusted(mirror.read_state())
        known = state.wanted or state.serving
        self.status.published_release = known.number if known is not None else 0
        self.status.in_folder = state.serving is not None
        # A server that has nothing may need the older releases: read them again.
        self._etag = state.etag if state.serving is not None else None
        self.status.verifies = trust.verify is not None
        self._set(state)
        self._attempt("mirror", self._mend)
        if self.status.in_folder and self._state.serving is not None:
            say(f"release {self._state.serving.number} is already in {mirror.repository}")

    def step(self) -> float:
        """Do what is to be done now; return how long (s) to wait before the next step.

        A failure is logged, and kept in ``failure`` until the next step; None: no failure.
        """
        self.failure = None
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + self._poll_s
            self._attempt("bucket", self._look)
            self._attempt("mirror", self._mend)
        tried = None
        while (wanted := self._state.wanted) is not None and wanted is not tried:
            tried = wanted  # if it is refused, an older one may be the next
            if self._attempt("download", partial(self._bring, wanted)):
                self._attempt("server", partial(self._confirm, wanted))
        left = max(self._next_look - self._clock(), 0.0)
        return left if self._loading_since is None else min(left, PAUSE_S)

    def _attempt(self, what: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except StatementError as error:
            self._refuse_statement(error)
        except ReleaseError as error:
            self._refuse(what, error)
        except BucketError as error:
            self._fail("bucket", what, str(error))
        except OSError as error:
            place = error.filename or self._mirror.repository
            self._fail("folder", "folder", f"{place}: {error.strerror or error}")
        else:
            self._told.pop(what, None)
            return True
        return False

    def _look(self) -> None:
        if self._retry_at is not None and self._clock() >= self._retry_at:
            self._etag = self._retry_at = None
        try:
            found = self._bucket.published(self._etag)
        except BucketError:
            if self._away_since is None:
                self._away_since = self._clock()
            raise
        self.status.last_success = time.time()
        if self._away_since is not None:
            self._say(f"the bucket answers again after {self._clock() - self._away_since:.0f} s")
            self._away_since = None
        accepted = self._state.accepted
        if found is None:
            if self._trust.verify is not None and accepted is not None:
                refuse_expired(accepted.expires, self._today())
            return
        etag, content = found
        self._etag = None  # until it is accepted
        published, accepted = self._trust.accept(self._bucket, content, accepted, self._today())
        self._etag, wanted, self._older = etag, published.current, list(published.fallbacks)
        self.status.published_release, self.status.refused = wanted.number, False
        self._loading_since = self._retry_at = None
        self._told.pop(_STATEMENT, None)
        before, serving = self._state.wanted, self._state.serving
        # Of another one that is on its way, the server may have been given something.
        if wanted == serving and before is None and self._mirror.holds(wanted):
            self._remember(State(etag, wanted, None, accepted))
        else:
            self._say(f"release {wanted.number} is published")
            if serving is None and before is not None and self._mirror.holds(before):
                serving = before  # the server had no time to answer with it
            self._remember(State(etag, serving, wanted, accepted))

    def _trusted(self, state: State) -> State:
        """Return what of a state may be used with this key and bucket."""
        accepted = state.accepted
        if accepted is not None and self._trust.knows(accepted):
            return state
        if self._trust.verify is not None and (accepted is None or not accepted.key):
            # What is in the folder, if anything, was never verified.
            self._mirror.clear()
            return State()
        return replace(state, etag=None)

    def _mend(self) -> None:
        """Fetch the serving release again if it is no longer in the folder."""
        serving, wanted = self._state.serving, self._state.wanted
        if serving is not None and wanted is None and not self._mirror.holds(serving):
            self._say(f"{self._mirror.repository} was changed by someone else")
            self.status.in_folder = False
            self._etag = None
            self._remember(replace(self._state, etag=None, wanted=serving))

    def _bring(self, wanted: Release) -> None:
        """Give the server the versions it lacks."""
        if self._mirror.holds(wanted):
            return
        self._loading_since = None
        self._templates.check(wanted)
        self._mirror.make_room(wanted)
        models = wanted.models
        lacking = [name for name, model in models.items() if not self._mirror.has(name, model)]
        for name in lacking:
            self._mirror.fetch(self._read, name, models[name])
        versions = {name: self._mirror.assemble(name, models[name]) for name in lacking}
        self._check(list(versions.values()), self._ask)
        for name, version in versions.items():
            self._mirror.place(name, models[name], version)
        self._mirror.configure(wanted)
        self._say(f"release {wanted.number} is in {self._mirror.repository}")

    def _read(self, path: str, start: int, size: int) -> Iterator[bytes]:
        for chunk in self._bucket.read(path, start, size):
            # However long all of it takes, the bucket is there.
            self.status.last_success = time.time()
            yield chunk

    def _ask(self) -> None:
        """Find out whether the bucket is there; what it says is for the next look."""
        with suppress(BucketError, StatementError):
            self._bucket.published(self._etag)
            self.status.last_success = time.time()

    def _confirm(self, wanted: Release) -> None:
        """Remove the old versions once the server answers with the new."""
        self.status.in_folder = True
        now = self._clock()
        if self._loading_since is None:
            self._loading_since = now
        loaded = {name: self._is_loaded(name, model) for name, model in wanted.models.items()}
        if None in loaded.values():
            self._silent_since = self._silent_since if self._silent_since is not None else now
            if now - self._silent_since >= REPEAT_S:
                self._tell("loading", f"release {wanted.number}: the server does not answer")
            self._loading_since = now  # loading has not started
            return
        self._silent_since = None
        loading = {name: wanted.versions[name] for name, done in loaded.items() if not done}
        if not loading:
            self._loading_since = None
            self._told.pop("loading", None)
            self._mirror.prune(wanted)
            # Without the ETag of a refused release: the next start of this program tries it again.
            etag = None if self.status.refused else self._etag
            self._remember(replace(self._state, etag=etag, serving=wanted, wanted=None))
            self._say(f"release {wanted.number} serves: {_versions(wanted.versions)}")
        elif now - self._loading_since > LOAD_S:
            words = f"{_versions(loading)} cannot be loaded: the server's log says why"
            if self._state.serving is not None or self._older:
                raise ReleaseError(words)
            self._tell("loading", words)

    def _is_loaded(self, name: str, model: Model) -> bool | None:
        ready = self._server.is_ready(name, model.version)
        if not ready:
            return ready
        # A server that cannot use a configuration keeps the one it has.
        return self._server.loaded(name) in (None, self._mirror.digest(name, model))

    def _refuse_statement(self, error: StatementError) -> None:
        # Read it again: its signature may follow, or this host's clock be set right.
        self._etag, self.status.refused = None, True
        self.status.refused_statements[error.reason] += 1
        self._tell(_STATEMENT, f"refused: {error}")

    def _refuse(self, what: str, error: ReleaseError) -> None:
        serving, wanted = self._state.serving, self._state.wanted
        self.status.refused = True
        self.status.failures["release"] += 1
        number = ""
        if what != "bucket" and wanted is not None:
            number = f"release {wanted.number}: "
            self._loading_since = None
            if what == "download":
                self._retry_at = self._clock() + RETRY_S
            if serving == wanted:  # it was to be mended, and cannot be
                serving = None
            older = self._older.pop(0) if serving is None and self._older else None
            state = replace(self._state, etag=None, serving=serving, wanted=older)
            self._attempt("folder", partial(self._go_back, state))
        self._told.pop(what, None)
        self._tell(what, f"refused: {number}{error}")

    def _go_back(self, state: State) -> None:
        self._remember(state)
        serving = state.serving
        if serving is not None and all(self._mirror.has(*each) for each in serving.models.items()):
            self._mirror.configure(serving)
            self._mirror.prune(serving)

    def _fail(self, reason: str, what: str, words: str) -> None:
        self.status.failures[reason] += 1
        self._tell(what, words)

    def _tell(self, what: str, words: str) -> None:
        """Say what is wrong: at once, then every `REPEAT_S`."""
        serving, wanted = self._state.serving, self._state.wanted
        goes_on = (
            "no release yet" if serving is None else f"release {serving.number} stays in service"
        )
        if serving is None and wanted is not None and self.status.refused:
            does = "going on with" if what == _STATEMENT else "falling back to"
            goes_on = f"{does} release {wanted.number}"
        self.failure = f"{words}; {goes_on}"
        told = self._told.get(what)
        if told is None or self._clock() - told >= REPEAT_S:
            self._told[what] = self._clock()
            self._say(self.failure)

    def _remember(self, state: State) -> None:
        self._set(state)
        self._mirror.write_state(state)

    def _set(self, state: State) -> None:
        self._state = state
        self.status.release = state.serving.number if state.serving is not None else 0
        self.status.statement = state.accepted


def _versions(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} version {version}" for name, version in versions.items())
