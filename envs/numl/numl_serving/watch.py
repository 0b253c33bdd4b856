"""Checks a server's golden answers repeatedly, and exports the results to Prometheus.

``health --watch SECONDS --metrics PORT``, in a pod beside the server. The metrics are those of
``numlkit smoke --watch``, which docs/monitoring.md explains, so the same alerts serve both.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

from numl_serving.errors import ServingError
from numl_serving.health import NoAnswerError, Server, State, Verdict, judge, models_of

STATES: tuple[State, ...] = ("right", "wrong", "failing", "unready", "unjudged", "unreachable")
ANSWER_S = 10.0
"""Time limit (s) for the check of one model."""


@dataclass(slots=True)
class Seen:
    """What was seen of a model: its state now, and how often each was found.

    Its last right answer is not longer ago than its first check, when it may just be loading.
    """

    state: State = "unreachable"
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    latency: float | None = None
    last_right: float = field(default_factory=time.time)


class Watch:
    """Checks the models of a repository; nothing is exported before the server's first answer.

    Args:
        name: The server's, in the metrics.
        repository: Its folder, whose golden answers are expected.
    """

    def __init__(self, name: str, host: str, port: int, repository: Path) -> None:
        self._name, self._host, self._port, self._repository = name, host, port, repository
        self._ready, self._checked = False, 0.0
        self._models: Mapping[str, Seen] = {}

    def look(self) -> None:
        """Check every model once, and print what has changed.

        A fault of its own leaves no verdict and does not stop it: a pod whose containers exit
        gets no requests.
        """
        try:
            self._look()
        except Exception as error:
            self._models = {}
            sys.stdout.write(f"watch: {type(error).__name__}: {error}\n")
            sys.stdout.flush()

    def _look(self) -> None:
        try:
            ready = self._server().ask("GET", "/v2/health/ready").status == 200
            away = None
        except NoAnswerError as error:
            if not self._checked:
                return  # it is starting, which the kubelet watches over
            ready, away = False, Verdict("unreachable", str(error))
        seen = {}
        for model in models_of(self._repository):
            verdict = away or self._judge(model)
            known = self._models.get(model)
            seen[model] = _after(known or Seen(), verdict)
            if known is None or known.state != verdict.state:
                why = f" ({verdict.fault})" if verdict.fault else ""
                sys.stdout.write(f"watch: {model}: {verdict.state}{why}\n")
                sys.stdout.flush()
        self._models, self._ready, self._checked = seen, ready, time.time()

    def _server(self) -> Server:
        return Server(self._host, self._port, deadline=time.monotonic() + ANSWER_S)

    def _judge(self, model: str) -> Verdict:
        try:
            return judge(self._server(), self._repository / model)
        except NoAnswerError as error:
            return Verdict("failing", str(error))
        except ServingError as error:  # its golden answer cannot be read
            return Verdict("unjudged", str(error))

    def metrics(self) -> str:
        """Return what was seen, in Prometheus's text format."""
        lines = []

        def add(name: str, kind: str, values: Mapping[str, float]) -> None:
            lines.append(f"# TYPE numl_smoke_{name} {kind}")
            for labels, value in values.items():
                lines.append(f'numl_smoke_{name}{{server="{self._name}"{labels}}} {value!r}')

        states: dict[str, float] = {}
        counts: dict[str, float] = {}
        latency: dict[str, float] = {}
        right: dict[str, float] = {}
        for model, seen in self._models.items():
            label = f',model="{model}"'
            for state in STATES:
                states[f'{label},state="{state}"'] = int(seen.state == state)
                counts[f'{label},state="{state}"'] = seen.counts[state]
            if seen.latency is not None:
                latency[label] = seen.latency
            right[label] = seen.last_right
        if self._checked:
            add("server_ready", "gauge", {"": int(self._ready)})
            add("last_check_timestamp_seconds", "gauge", {"": self._checked})
        add("state", "gauge", states)
        add("checks_total", "counter", counts)
        add("latency_seconds", "gauge", latency)
        add("last_right_timestamp_seconds", "gauge", right)
        return "\n".join(lines) + "\n"


def _after(before: Seen, verdict: Verdict) -> Seen:
    counts = {**before.counts, verdict.state: before.counts[verdict.state] + 1}
    if verdict.seconds is None:
        return Seen(verdict.state, counts, before.latency, before.last_right)
    return Seen(verdict.state, counts, verdict.seconds, time.time())


def run(
    host: str, port: int, repository: Path, *, every: float, listen: str, metrics_port: int
) -> int:
    """Watch until stopped; return the exit code if it cannot."""
    watch = Watch(socket.gethostname(), host, port, repository)
    try:
        exporter = _exporter(watch, listen, metrics_port)
    except OSError as error:
        reason = error.strerror or error
        sys.stdout.write(f"watch: cannot listen on {listen} port {metrics_port}: {reason}\n")
        return 2
    # A container's first process ignores every signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    while True:
        due = time.monotonic() + every
        watch.look()
        time.sleep(max(0.0, due - time.monotonic()))


def _end(*_signal: object) -> NoReturn:
    raise SystemExit(0)


def _exporter(watch: Watch, listen: str, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = (watch.metrics() if found else "/metrics\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    class Exporter(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        daemon_threads = True

    return Exporter((listen, port), Handler)
