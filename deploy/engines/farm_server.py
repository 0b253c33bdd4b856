"""What runs beside each server of a farm: enters it in the registry, and has it renewed.

    python -m deploy.engines.farm_server NAME JOB BEGUN TASK [REPLACES]

``numlkit exec`` starts it when the server is ready, and stops the server when it ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from deploy.client.registry import Entry
from deploy.engines.farm import Farm, farm_of
from deploy.host.errors import KitError
from numl_formats.ending import end_at_signals

log = logging.getLogger("numlkit.farm")
_LOOK_S, _PAUSE_S = 1.0, 10.0
_SUSPENDED_S = 300.0
"""A pause so long (s) is no file system or batch system that answers late."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a server does what, in seconds since its job began; None: never.

    Attributes:
        renews: It submits the job that shall replace it.
        leaves: It leaves the registry, also if that one is not there yet.
        drains: For how long it goes on after it has left: clients, and a shared file system, take
            this long to notice.
    """

    renews: float | None
    leaves: float | None
    drains: float

    @classmethod
    def of(cls, hours: float | None) -> Times:
        """Return the times for a job's limit; the last tenth, up to a minute, is for stopping."""
        if hours is None:
            return cls(None, None, 0.0)
        limit = 3600 * hours
        drains = min(limit / 20, 90.0)
        return cls(limit / 2, limit - min(limit / 10, 60.0) - drains, drains)


def reachable(url: str, node: str) -> str:
    """Return a server's URL as other hosts know it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{node}:{parts.port}"


def attend(
    farm: Farm,
    entry: Entry,
    age: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Stay until the server is replaced, its time is over, or the farm ends.

    Args:
        age: How long ago the job began (s).
    """
    times = Times.of(farm.settings.hours)
    renews = times.renews
    while farm.goes_on:
        if renews is not None and age() >= renews:
            renews = age() + _PAUSE_S  # the next try, if this one fails
            with _going_on("cannot be renewed yet"):
                farm.renew(entry.name)
                renews = None
                log.warning("the job that replaces this one is submitted, or asked for")
        others: list[Entry] = []
        with _going_on("the registry cannot be read"):
            others = farm.registry.entries()
        if any(other.replaces == entry.name for other in others):
            log.warning("it is replaced")
            break
        if times.leaves is not None and age() >= times.leaves:
            log.warning("its time is over, and none replaces it yet")
            break
        with _going_on("the registry cannot be written"):
            farm.registry.stay(entry)
        sleep(_LOOK_S)
    with _going_on("the registry cannot be left"):
        farm.registry.leave(entry)
    if farm.goes_on:
        sleep(times.drains)


class Age:
    """How long ago a job began (s), as its batch system counts.

    It does not count while the job is suspended, and neither does a step of the clock. Each call
    adds the time since the one before, unless that is too long for anything else.
    """

    def __init__(self, begun_ago: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._age, self._clock, self._seen = begun_ago, clock, clock()

    def __call__(self) -> float:
        now = self._clock()
        if now - self._seen < _SUSPENDED_S:
            self._age += now - self._seen
        self._seen = now
        return self._age


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Log what a batch system or a file system refuses: the server is healthy all the same."""
    try:
        yield
    except (KitError, OSError) as error:
        log.warning("%s: %s", what, error)


def main(argv: Sequence[str]) -> int:
    name, job, begun, task, replaces = [*argv, ""][:5]
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    ended = end_at_signals()

    def sleep(seconds: float) -> None:
        if ended:
            raise SystemExit(ended[0])
        time.sleep(seconds)

    farm = farm_of(name, job)
    if farm is None:
        log.warning("farm %s has ended", name)
        return 0
    # The same in a job that was requeued, after a node failed or another was preferred.
    own = hashlib.sha256(task.encode()).hexdigest()[:8]
    if farm.was_renewed(own):
        log.warning("it began again, but another job is there, or comes, in its place")
        return 0
    # A submission that seems to fail may have been taken all the same, and start at any time.
    with _going_on("it is not known whether another job replaces the same server"):
        if replaces and not farm.takes_over(replaces, own):
            log.warning("another job replaces %s: its renewal was submitted twice", replaces)
            return 0
    url = reachable(os.environ["NUML_GRPC_URL"], socket.gethostname())
    entry = farm.registry.enter(url, name=own, replaces=replaces)
    log.warning("serves at %s", url)
    try:
        attend(farm, entry, Age(time.time() - float(begun)), sleep)
    finally:
        with _going_on("the registry cannot be left"):
            farm.registry.leave(entry)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
