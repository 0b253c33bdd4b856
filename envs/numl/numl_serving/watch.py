"""Checks a server's golden answers repeatedly, and exports the results to Prometheus.

``health --watch SECONDS --metrics PORT``, in a pod beside the server. The metrics are those of
``numlkit smoke --watch``, so the same alerts serve both.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from numl_formats.ending import end_at_signals
from numl_formats.inference import NoAnswerError, TritonHttp
from numl_formats.metrics import serve
from numl_formats.watched import Watched
from numl_serving.errors import ServingError
from numl_serving.judging import Verdict, judge, models_of

ANSWER_S = 10.0
"""Time limit (s) for the check of one model."""


class Watch:
    """Checks the models of a repository; nothing is exported before the server's first answer.

    Args:
        name: The server's, in the metrics.
        repository: Its folder, whose golden answers are expected.
    """

    def __init__(self, name: str, host: str, port: int, repository: Path) -> None:
        self._name, self._host, self._port, self._repository = name, host, port, repository
        self._answered = False
        self._watched = Watched()
        self.metrics = self._watched.metrics

    def look(self) -> None:
        """Check every model once, and print what has changed.

        A fault of its own leaves no verdict and does not stop it: a pod whose containers exit
        gets no requests.
        """
        try:
            self._look()
        except Exception as error:
            self._watched.forget_models()
            sys.stdout.write(f"watch: {type(error).__name__}: {error}\n")
            sys.stdout.flush()

    def _look(self) -> None:
        try:
            ready = self._server().ask("GET", "/v2/health/ready").status == 200
            away = None
        except NoAnswerError as error:
            if not self._answered:
                return  # it is starting, which the kubelet watches over
            ready, away = False, Verdict("unreachable", str(error))
        self._answered = True
        verdicts = {model: away or self._judge(model) for model in models_of(self._repository)}
        found = {model: (verdict.state, verdict.seconds) for model, verdict in verdicts.items()}
        changed = self._watched.record(self._name, found, ready=ready, now=time.time())
        for model, state in changed.items():
            fault = verdicts[model].fault
            sys.stdout.write(f"watch: {model}: {state}{f' ({fault})' if fault else ''}\n")
        sys.stdout.flush()

    def _server(self) -> TritonHttp:
        return TritonHttp(self._host, self._port, deadline=time.monotonic() + ANSWER_S)

    def _judge(self, model: str) -> Verdict:
        try:
            return judge(self._server(), self._repository / model)
        except NoAnswerError as error:
            return Verdict("failing", str(error))
        except ServingError as error:  # its golden answer cannot be read
            return Verdict("unjudged", str(error))


def run(
    host: str, port: int, repository: Path, *, every: float, listen: str, metrics_port: int
) -> int:
    """Watch until stopped; return the exit code if it cannot."""
    watch = Watch(socket.gethostname(), host, port, repository)
    try:
        serve({"/metrics": lambda: (200, watch.metrics())}, listen, metrics_port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        sys.stdout.write(f"watch: cannot listen on {listen} port {metrics_port}: {reason}\n")
        return 2
    ended = end_at_signals()
    while True:
        due = time.monotonic() + every
        watch.look()
        if ended:
            return ended[0]
        time.sleep(max(0.0, due - time.monotonic()))
