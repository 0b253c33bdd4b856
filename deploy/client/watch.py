"""Repeats the smoke inference and exports what it finds as Prometheus metrics.

What was found is frozen data, each server's replaced as a whole after each of its checks; the
metrics are rendered from it when they are asked for.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deploy.client.diagnosis import certificate_of
from deploy.client.endpoint import Endpoint
from deploy.client.service import ExpectedModel, ServiceCheck, State, check_service
from deploy.host.console import Say
from deploy.host.errors import ClientError, KitError

STATES: tuple[State, ...] = get_args(State)
# At the end, a check that is under way may come to its own end for so long.
_END_S = 2.0


@dataclass(frozen=True)
class ModelSeen:
    """What was seen of a model: its state now, and how often each state was found.

    ``latency`` (seconds) is that of the last right answer, ``last_right`` its Unix time; 0: none
    since the watch began.
    """

    state: State
    counts: Mapping[State, int] = field(default_factory=dict)
    latency: float | None = None
    last_right: float = 0.0


@dataclass(frozen=True)
class ServerSeen:
    """What was seen of a server; times are Unix times in seconds.

    ``ready`` is what the server says of itself, ``expires`` when its certificate does: None
    without TLS, or if the server cannot be reached.
    """

    ready: bool
    checked: float
    expires: float | None = None
    models: Mapping[str, ModelSeen] = field(default_factory=dict)


def seen_after(
    before: ServerSeen | None,
    check: ServiceCheck,
    models: Sequence[str],
    *,
    now: float,
    expires: float | None,
) -> ServerSeen:
    """Return what is seen of a server after a check; a check without models reached none."""
    found = {model.model: model for model in check.models}
    known = {} if before is None else before.models
    seen = {}
    for name in models:
        state: State = found[name].state if name in found else "unreachable"
        old = known.get(name, ModelSeen(state))
        counts = {each: old.counts.get(each, 0) + (each == state) for each in STATES}
        new = replace(old, state=state, counts=MappingProxyType(counts))
        latency = found[name].latency if name in found else None
        if latency is not None:
            new = replace(new, latency=latency.median_s, last_right=now)
        seen[name] = new
    return ServerSeen(check.ready, now, expires, MappingProxyType(seen))


_LABELS = ("server", "model", "state")
# The labels are so many of these, from the first on.
_METRICS = {
    "server_ready": (1, "Whether the server says that it is ready"),
    "last_check_timestamp_seconds": (1, "Unix time of the last check"),
    "certificate_expiry_timestamp_seconds": (1, "Unix time at which its certificate expires"),
    "state": (3, "1 for the state in which the last check found the model, 0 for the others"),
    "checks": (3, "Checks that found the model in this state"),
    "latency_seconds": (2, "Time that the last right answer took"),
    "last_right_timestamp_seconds": (2, "Unix time of the last right answer, 0 if there was none"),
}


def metrics(servers: Mapping[str, ServerSeen]) -> Iterator[Metric]:
    """Render what was seen of each server, by its URL."""
    families = {}
    for name, (count, meaning) in _METRICS.items():
        kind = CounterMetricFamily if name == "checks" else GaugeMetricFamily
        families[name] = kind(f"numl_smoke_{name}", meaning, labels=_LABELS[:count])

    def add(name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            families[name].add_metric(labels, value)

    for url, seen in servers.items():
        add("server_ready", seen.ready, url)
        add("last_check_timestamp_seconds", seen.checked, url)
        add("certificate_expiry_timestamp_seconds", seen.expires, url)
        for model, each in seen.models.items():
            for state in STATES:
                add("state", each.state == state, url, model, state)
                add("checks", each.counts.get(state, 0), url, model, state)
            add("latency_seconds", each.latency, url, model)
            add("last_right_timestamp_seconds", each.last_right, url, model)
    yield from families.values()


@dataclass(eq=False)
class Watch(Collector):
    """Checks servers every ``interval`` seconds until it is stopped; tells changes of state.

    Each server has a thread of its own, so that one that hangs delays no other. What is expected
    is read anew for each check: an upgrade may bring other reference outputs.
    """

    endpoints: Sequence[Endpoint]
    expected: Callable[[], Mapping[str, ExpectedModel]]
    interval: float
    timeout: float
    repeat: int
    say: Say
    _seen: dict[str, ServerSeen] = field(default_factory=dict, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _fault: BaseException | None = field(default=None, init=False)

    def collect(self) -> Iterator[Metric]:
        yield from metrics(dict(self._seen))

    def stop(self) -> None:
        """Have :meth:`run` return within moments; may be called by a signal's handler."""
        self._stop.set()

    def run(self, host: str, port: int) -> bool:
        """Watch, and export the metrics at an address, until stopped; ClientError if it is taken.

        Returns whether every check has come to its end: one that hangs is left behind. A fault of
        the watch itself ends it: metrics that nobody renews would be lies.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        expected = self.expected()  # what is wrong with it from the beginning ends the watch
        try:
            exporter, _ = start_http_server(port, host, registry)
        except OSError as error:
            cause = f"metrics cannot be exported at {host}:{port}: {error.strerror or error}"
            raise ClientError(cause, "--metrics with another port") from None
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
        return not any(thread.is_alive() for thread in threads)

    def _follow(self, endpoint: Endpoint, expected: Mapping[str, ExpectedModel]) -> None:
        try:
            while not self._stop.is_set():
                due = time.monotonic() + self.interval
                try:
                    expected = self.expected()
                except KitError as error:
                    # It may be being replaced; the last one that could be read counts.
                    self._tell(f"{error.cause}; using the one read before")
                self._look(endpoint, expected)
                self._stop.wait(max(0.0, due - time.monotonic()))
        except BaseException as error:
            self._fault = error
            self._stop.set()

    def _look(self, endpoint: Endpoint, expected: Mapping[str, ExpectedModel]) -> None:
        check = check_service(endpoint, expected, timeout=self.timeout, repeat=self.repeat)
        certificate = certificate_of(endpoint, timeout=self.timeout)
        expires = None if certificate is None else certificate.not_after.timestamp()
        before = self._seen.get(endpoint.url)
        seen = seen_after(before, check, tuple(expected), now=time.time(), expires=expires)
        self._seen[endpoint.url] = seen
        why = {model.model: model.error for model in check.models}
        for name, model in seen.models.items():
            if before is None or before.models[name].state != model.state:
                reason = why.get(name) or check.error
                self._tell(
                    f"{endpoint.url} {name}: {model.state}{f' ({reason})' if reason else ''}"
                )

    def _tell(self, text: str) -> None:
        self.say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}")
