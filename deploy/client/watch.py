"""Repeats the smoke inference and exports what it finds as Prometheus metrics."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from deploy.client.diagnosis import certificate_of
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, ServiceCheck, check_service
from deploy.host.cli import describe_os_error
from deploy.host.console import Say
from deploy.host.errors import ClientError, KitError
from numl_formats.metrics import serve
from numl_formats.watched import State, Watched

# When the watch stops, a running check gets this long to finish.
_END_S = 2.0


@dataclass(frozen=True)
class Target:
    """What is checked now, and what is expected of it; ``identity`` as for `check_service`."""

    endpoints: Sequence[Endpoint]
    expected: Mapping[str, ExpectedModel]
    identity: str | None = None


@dataclass(eq=False)
class Watch:
    """Checks servers every ``interval`` seconds until stopped; reports changes of state.

    Each server has its own thread, so that one that hangs delays no other. What is checked is asked
    for again as often: servers come and go, and an upgrade may bring other reference outputs.
    """

    target: Callable[[], Target]
    interval: float
    timeout: float
    repeat: int
    say: Say
    watched: Watched = field(default_factory=Watched, init=False)
    _now: Target = field(init=False)
    _wrong: str = field(default="", init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _fault: BaseException | None = field(default=None, init=False)

    def stop(self) -> None:
        """Have :meth:`run` return within moments; may be called by a signal's handler."""
        self._stop.set()

    def run(self, host: str, port: int) -> None:
        """Watch, and export the metrics at an address, until stopped; ClientError if it is taken.

        A check that hangs is abandoned. A fault of the watch itself ends it: stale metrics would be
        lies.
        """
        self._now = self.target()  # one that is wrong from the start ends the watch
        try:
            exporter = serve({"/metrics": lambda: (200, self.watched.metrics())}, host, port)
        except OSError as error:
            cause = f"metrics cannot be exported at {host}:{port}: {error.strerror or error}"
            raise ClientError(cause, "use another port with --metrics") from None
        threads: dict[Endpoint, threading.Thread] = {}
        while not self._stop.is_set():
            for endpoint in self._now.endpoints:
                if endpoint not in threads or not threads[endpoint].is_alive():
                    thread = threading.Thread(target=self._follow, args=(endpoint,), daemon=True)
                    threads[endpoint] = thread
                    thread.start()
            self._stop.wait(self.interval)
        deadline = time.monotonic() + _END_S
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        exporter.shutdown()
        exporter.server_close()
        if self._fault is not None:
            raise self._fault

    def _follow(self, endpoint: Endpoint) -> None:
        try:
            while not self._stop.is_set():
                due = time.monotonic() + self.interval
                self._read_again()
                if endpoint not in self._now.endpoints:
                    break
                self._look(endpoint)
                self._stop.wait(max(0.0, due - time.monotonic()))
            if all(endpoint.url != other.url for other in self._now.endpoints):
                self.watched.forget(endpoint.url)
        except BaseException as error:
            self._fault = error
            self._stop.set()

    def _read_again(self) -> None:
        try:
            self._now, self._wrong = self.target(), ""
        except (KitError, OSError) as error:
            # It may just be being replaced, or its file system be away.
            said = describe_os_error(error) if isinstance(error, OSError) else error
            if said.cause != self._wrong:
                self._wrong = said.cause
                self._tell(f"{said.cause}; what was there before is still watched")

    def _look(self, endpoint: Endpoint) -> None:
        now = self._now
        check = check_service(
            endpoint,
            now.expected,
            timeout=self.timeout,
            repeat=self.repeat,
            identity=now.identity,
        )
        certificate = certificate_of(endpoint, timeout=self.timeout)
        expires = None if certificate is None else certificate.not_after.timestamp()
        changed = self.watched.record(
            endpoint.url,
            found_by(check, now.expected),
            ready=check.ready,
            now=time.time(),
            expires=expires,
        )
        why = {model.model: model.error for model in check.models}
        for name, state in changed.items():
            reason = why.get(name) or check.error
            self._tell(f"{endpoint.url} {name}: {state}{f' ({reason})' if reason else ''}")

    def _tell(self, text: str) -> None:
        self.say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}")


def found_by(check: ServiceCheck, models: Iterable[str]) -> dict[str, tuple[State, float | None]]:
    """Return what a check found of each model, also of those that it could not ask."""
    found: dict[str, tuple[State, float | None]] = dict.fromkeys(models, ("unreachable", None))
    for model in check.models:
        found[model.model] = model.state, model.latency.median_s if model.latency else None
    return found
