"""What a watch has found of servers and their models, and the metrics it exports.

docs/monitoring.md explains them; ``smoke --watch`` and the watch beside a server export the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from numl_formats.metrics import Labels, family

State = Literal["right", "wrong", "failing", "unready", "unjudged", "unreachable"]
"""What a check found: right or wrong values or tensors; ``failing``: the server says that the model
is ready, but it gives no answer; ``unready``: the server says that it is not; ``unjudged``: ready,
but nobody knows the right values; ``unreachable``: the server cannot be asked."""
STATES: tuple[State, ...] = get_args(State)


@dataclass
class _Model:
    """A model's state now, how often each was found, and its last right answer.

    Until there is one, that is its first check: it may just be loading.
    """

    last_right: float
    state: State = "unreachable"
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    latency_s: float | None = None


@dataclass
class _Server:
    ready: bool
    checked: float
    expires: float | None
    models: dict[str, _Model] = field(default_factory=dict)


class Watched:
    """Servers by name or URL; unknown values are not exported. Threads may share it."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._lock = threading.Lock()

    def record(
        self,
        server: str,
        found: Mapping[str, tuple[State, float | None]],
        *,
        ready: bool,
        now: float,
        expires: float | None = None,
    ) -> dict[str, State]:
        """Record a check of a server and of all its models; return what has changed.

        Args:
            found: Each model's state, and how long (s) a right answer took.
            ready: Whether the server says that it is ready.
            now: Unix time of the check.
            expires: Unix time at which its certificate expires; None: unknown, or without TLS.
        """
        with self._lock:
            known = self._servers.get(server)
            before = known.models if known is not None else {}
            models, changed = {}, {}
            for name, (state, seconds) in found.items():
                model = models[name] = before.get(name) or _Model(now)
                if name not in before or model.state != state:
                    changed[name] = state
                model.state = state
                model.counts[state] += 1
                if seconds is not None:
                    model.latency_s, model.last_right = seconds, now
            self._servers[server] = _Server(ready, now, expires, models)
        return changed

    def forget(self, server: str) -> None:
        """Forget a server that is not watched any more."""
        with self._lock:
            self._servers.pop(server, None)

    def forget_models(self) -> None:
        """Forget all models, of which nothing is known any more."""
        with self._lock:
            for server in self._servers.values():
                server.models.clear()

    def metrics(self) -> str:
        """Return what was found, in Prometheus's text format."""
        with self._lock:
            servers: dict[Labels, _Server] = {
                (("server", name),): server for name, server in self._servers.items()
            }
            models: dict[Labels, _Model] = {
                (*label, ("model", name)): model
                for label, server in servers.items()
                for name, model in server.models.items()
            }
            lines = [
                *_gauge(
                    "server_ready", "Whether the server says that it is ready",
                    {label: int(server.ready) for label, server in servers.items()},
                ),
                *_gauge(
                    "last_check_timestamp_seconds", "Unix time of the last check",
                    {label: server.checked for label, server in servers.items()},
                ),
                *_gauge(
                    "certificate_expiry_timestamp_seconds",
                    "Unix time at which its certificate expires",
                    {label: s.expires for label, s in servers.items() if s.expires is not None},
                ),
                *_gauge(
                    "state", "1 for the state in which the last check found the model, else 0",
                    _by_state(models, lambda model, state: int(model.state == state)),
                ),
                *family(
                    "numl_smoke_checks_total", "counter",
                    _by_state(models, lambda model, state: model.counts[state]),
                    "Checks that found the model in this state",
                ),
                *_gauge(
                    "latency_seconds", "Time the last right answer took",
                    {la: m.latency_s for la, m in models.items() if m.latency_s is not None},
                ),
                *_gauge(
                    "last_right_timestamp_seconds",
                    "Unix time of the last right answer; until there is one, of the first check",
                    {label: model.last_right for label, model in models.items()},
                ),
            ]  # fmt: skip
        return "\n".join(lines) + "\n"


def _gauge(name: str, about: str, samples: Mapping[Labels, float]) -> list[str]:
    return family(f"numl_smoke_{name}", "gauge", samples, about)


def _by_state(
    models: Mapping[Labels, _Model], value: Callable[[_Model, State], int]
) -> dict[Labels, float]:
    return {
        (*label, ("state", state)): value(model, state)
        for label, model in models.items()
        for state in STATES
    }
