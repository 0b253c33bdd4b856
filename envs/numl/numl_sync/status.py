"""What the agent tells probes and Prometheus, over HTTP.

``/metrics``
    ``numl_sync_release``: number of the release that the server answers with; 0: none yet.
    ``numl_sync_published_release``: number of the release that the bucket says serves; 0: unknown.
    ``numl_sync_refused``: 1 while that release is refused, else 0.
    ``numl_sync_last_success_timestamp_seconds``: when the bucket answered last.
    ``numl_sync_failures_total{reason="bucket|release|folder"}``: polls without an answer that
    helps, releases refused, failures to write the folder.

``/ready`` answers 200 once a release is in the folder, else 503.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from numl_sync.errors import UsageError

_REASONS = ("bucket", "release", "folder")


@dataclass
class Status:
    """The figures; the agent changes them.

    Attributes:
        in_folder: Whether the folder has a release, though the server may not yet answer with it.
        last_success: Seconds since 1970; 0: never.
    """

    release: int = 0
    published_release: int = 0
    refused: bool = False
    in_folder: bool = False
    last_success: float = 0.0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))

    def metrics(self) -> str:
        """Return them in Prometheus's text format."""
        gauges = {
            "release": self.release,
            "published_release": self.published_release,
            "refused": int(self.refused),
            "last_success_timestamp_seconds": f"{self.last_success:.3f}",
        }
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE numl_sync_{name} gauge", f"numl_sync_{name} {value}"]
        lines += ["# TYPE numl_sync_failures_total counter"]
        for reason, count in self.failures.items():
            lines += [f'numl_sync_failures_total{{reason="{reason}"}} {count}']
        return "\n".join(lines) + "\n"


def serve_status(status: Status, host: str, port: int) -> None:
    """Answer requests, in a thread that ends with the process.

    Raises:
        UsageError: The port is not available.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, status.metrics(), "text/plain; version=0.0.4")
            elif self.path == "/ready":
                ready = status.in_folder
                self._answer(200 if ready else 503, "ready\n" if ready else "no release yet\n")
            else:
                self._answer(404, "/metrics or /ready\n")

        def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a port number"
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
