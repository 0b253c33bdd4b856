"""Repeats the smoke inference and exports what it finds as Prometheus metrics."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    start_http_server,
)

from deploy.client.diagnosis import certificate_of
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, ServiceCheck, State, check_service
from deploy.host.console import Say
from deploy.host.errors import ClientError, KitError

STATES: tuple[State, ...] = get_args(State)
# When the watch stops, a running check gets this long to finish.
_END_S = 2.0
_NAMESPACE = "numl_smoke"

# Another series for each counter would say only when the watch began.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """What is known about servers, by URL, and their models; unknown values are not exported."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=self.registry)
        counter = partial(Counter, namespace=_NAMESPACE, registry=self.registry)
        of_server, of_model = ("server",), ("server", "model")
        of_state = ("server", "model", "state")
        self._ready = gauge("server_ready", "Whether the server says that it is ready", of_server)
        checked, expiry = "last_check_timestamp_seconds", "certificate_expiry_timestamp_seconds"
        self._checked = gauge(checked, "Unix time of the last check", of_server)
        self._expiry = gauge(expiry, "Unix time at which its certificate expires", of_server)
        state = "1 for the state in which the last check found the model, 0 for the others"
        self._state = gauge("state", state, of_state)
        self._checks = counter("checks", "Checks that found the model in this state", of_state)
        self._latency = gauge("latency_seconds", "Time the last right answer took", of_model)
        right = "Unix time of the last right answer; until there is one, of the first check"
        self._last_right = gauge("last_right_timestamp_seconds", right, of_model)
        self._known: set[tuple[str, str]] = set()

    def record(
        self, check: ServiceCheck, models: Sequence[str], *, now: float, expires: float | None
    ) -> dict[str, State]:
        """Record a check, made at the Unix time ``now``; return the state of each model.

        Args:
            expires: Unix time at which the server's certificate expires; None: without TLS, or if
                the server cannot be reached.
        """
        self._ready.labels(check.url).set(check.ready)
        self._checked.labels(check.url).set(now)
        if expires is None:
            self._expiry.remove(check.url)
        else:
            self._expiry.labels(check.url).set(expires)
        found = {model.model: model for model in check.models}
        states: dict[str, State] = {}
        for name in models:
            states[name] = found[name].state if name in found else "unreachable"
            for each in STATES:
                self._state.labels(check.url, name, each).set(each == states[name])
                self._checks.labels(check.url, name, each).inc(each == states[name])
            last_right = self._last_right.labels(check.url, name)
            if (check.url, name) not in self._known:
                self._known.add((check.url, name))
                last_right.set(now)  # the first one is due from here on
            latency = found[name].latency if name in found else None
            if latency is not None:
                self._latency.labels(check.url, name).set(latency.median_s)
                last_right.set(now)
        return states


@dataclass(eq=False)
class Watch:
    """Checks servers every ``interval`` seconds until stopped; reports changes of state.

    Each server has its own thread, so that one that hangs delays no other. What is expected is read
    again for each check: an upgrade may bring other reference outputs.
    """

    endpoints: Sequence[Endpoint]
    expected: Callable[[], Mapping[str, ExpectedModel]]
    interval: float
    timeout: float
    repeat: int
    say: Say
    metrics: Metrics = field(default_factory=Metrics, init=False)
    _states: dict[str, dict[str, State]] = field(default_factory=dict, init=False)
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
        expected = self.expected()  # an endpoint that is wrong from the start ends the watch
        try:
            exporter, _ = start_http_server(port, host, self.metrics.registry)
        except OSError as error:
            cause = f"metrics cannot be exported at {host}:{port}: {error.strerror or error}"
            raise ClientError(cause, "use another port with --metrics") from None
        threads = [
            threading.Thread(target=self._follow, args=(endpoint, expected), daemon=True)
            for endpoint in self.endpoints
        ]
        for thread in threads:
            thread.start()
        self._stop.wait()
        deadline = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        exporter.shutdown()
        exporter.server_close()
        if self._fault is not None:
            raise self._fault

    def _follow(self, endpoint: Endpoint, expected: Mapping[str, ExpectedModel]) -> None:
        try:
            while not self._stop.is_set():
                due = time.monotonic() + self.interval
                try:
                    expected = self.expected()
                except KitError as error:
                    # It may just be being replaced: keep using the last one.
                    self._tell(f"{error.cause}; keeping the one read before")
                self._look(endpoint, expected)
                self._stop.wait(max(0.0, due - time.monotonic()))
        except BaseException as error:
            self._fault = error
            self._stop.set()

    def _look(self, endpoint: Endpoint, expected: Mapping[str, ExpectedModel]) -> None:
        check = check_service(endpoint, expected, timeout=self.timeout, repeat=self.repeat)
        certificate = certificate_of(endpoint, timeout=self.timeout)
        expires = None if certificate is None else certificate.not_after.timestamp()
        states = self.metrics.record(check, tuple(expected), now=time.time(), expires=expires)
        before, self._states[endpoint.url] = self._states.get(endpoint.url, {}), states
        why = {model.model: model.error for model in check.models}
        for name, state in states.items():
            if before.get(name) != state:
                reason = why.get(name) or check.error
                self._tell(f"{endpoint.url} {name}: {state}{f' ({reason})' if reason else ''}")

    def _tell(self, text: str) -> None:
        self.say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}")
