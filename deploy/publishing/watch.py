"""A place that is looked at again and again; what is found is exported as Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NoReturn

from deploy.host.cli import describe_os_error
from deploy.host.console import Say
from deploy.host.errors import DamagedError, KitError, PublishError, SignatureError
from deploy.publishing.place import Listing
from numl_formats.metrics import Labels, family, serve

# A publish that is at work may look like damage: only what is still there after this counts.
_SETTLED_S = 5.0


@dataclass(eq=False)
class PlaceWatch:
    """Looks every ``interval`` seconds, and reports changes.

    Attributes:
        place: As typed; the metrics' label.
        found: What is wrong there; None: not known yet.
        checked: Unix time of the last look that told; until then, of the start.
    """

    place: str
    look: Callable[[], Listing]
    interval: float
    say: Say
    found: tuple[str, ...] | None = field(default=None, init=False)
    checked: float = field(default_factory=time.time, init=False)

    def run(self, host: str, port: int) -> NoReturn:
        """Watch, and export the metrics at an address; PublishError if it is taken."""
        try:
            serve({"/metrics": lambda: (200, self.metrics())}, host, port)
        except OSError as error:
            cause = f"metrics cannot be exported at {host}:{port}: {error.strerror or error}"
            raise PublishError(cause, "use another port with --metrics") from None
        while True:
            due = time.monotonic() + self.interval
            self.check()
            time.sleep(max(0.0, due - time.monotonic()))

    def check(self) -> None:
        """Look, and a second time where something is wrong that was not before."""
        try:
            found = self._wrong()
            if found and not self.found:
                time.sleep(min(self.interval, _SETTLED_S))
                found = self._wrong()
        except (KitError, OSError) as error:
            said = describe_os_error(error) if isinstance(error, OSError) else error
            self._tell(f"cannot be checked: {said.cause}")
            return
        if found != self.found:
            self._tell("; ".join(found) or "right")
        self.found, self.checked = found, time.time()

    def metrics(self) -> str:
        """Return what was found, in Prometheus's text format."""
        place: Labels = (("place", self.place),)
        refused = {place: float(bool(self.found))} if self.found is not None else {}
        about = "Whether what is published there is damaged, or not signed as it should be"
        lines = family("numl_published_refused", "gauge", refused, about)
        about = "Unix time of the last look at it; until there was one, of the watch's start"
        name = "numl_published_last_check_timestamp_seconds"
        return "\n".join([*lines, *family(name, "gauge", {place: self.checked}, about)]) + "\n"

    def _wrong(self) -> tuple[str, ...]:
        try:
            listing = self.look()
        except (SignatureError, DamagedError) as error:
            return (error.cause,)
        return listing.problems if listing.entries else ("nothing is published", *listing.problems)

    def _tell(self, text: str) -> None:
        self.say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {self.place}: {text}")
