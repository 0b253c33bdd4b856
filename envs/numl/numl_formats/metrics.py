"""Prometheus's text format, and pages served over HTTP.

Source of the format: Prometheus's "Exposition formats", version 0.0.4.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Labels = tuple[tuple[str, str], ...]
Page = Callable[[], tuple[int, str]]
"""Returns the status and the text of a page."""


def family(
    name: str, kind: Literal["gauge", "counter"], samples: Mapping[Labels, float], about: str = ""
) -> list[str]:
    """Return the lines of a metric, given its samples by their labels; none without samples."""
    if not samples:
        return []
    lines = [f"# HELP {name} {about}"] if about else []
    lines.append(f"# TYPE {name} {kind}")
    for labels, value in samples.items():
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        lines.append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def serve(pages: Mapping[str, Page], host: str, port: int) -> ThreadingHTTPServer:
    """Answer requests for pages, by their paths, in a thread that ends with the process.

    Raises:
        OSError, OverflowError: The address is not available.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # of a client that neither sends nor reads

        def do_GET(self) -> None:
            page = pages.get(self.path, lambda: (404, f"{' or '.join(pages)}\n"))
            status, text = page()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    class Exporter(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Exporter((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
