"""Asks the server beside the agent which versions are ready."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Server:
    """A Triton's HTTP endpoint."""

    url: str

    def is_ready(self, model: str, version: int) -> bool | None:
        """Return whether a version of a model answers; None if the server does not."""
        answer = self._get(f"/v2/models/{model}/versions/{version}/ready")
        return None if answer is None else answer[0] == http.client.OK

    def config(self, model: str) -> bytes | None:
        """Return the configuration that a model was loaded with; None if unknown."""
        answer = self._get(f"/v2/models/{model}/config")
        return answer[1] if answer is not None and answer[0] == http.client.OK else None

    def _get(self, path: str) -> tuple[int, bytes] | None:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port or 80, timeout=_LIMIT_S
        )
        try:
            # On a new connection: an open one delays the server's stop.
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
