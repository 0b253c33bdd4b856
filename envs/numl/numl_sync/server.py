"""Asks the server beside the agent which versions are ready."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import suppress
from dataclasses import dataclass

from numl_formats.config import DIGEST
from numl_formats.inference import Answer, NoAnswerError, TritonHttp

_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Server:
    """A Triton's HTTP endpoint."""

    host: str
    port: int

    def is_ready(self, model: str, version: int) -> bool | None:
        """Return whether a version of a model answers; None if the server does not."""
        answer = self._get(f"/v2/models/{model}/versions/{version}/ready")
        return None if answer is None else answer.status == http.client.OK

    def loaded(self, model: str) -> str | None:
        """Return the digest in the configuration that a model was loaded with.

        Empty if there is none in it; None if the server does not show it.
        """
        answer = self._get(f"/v2/models/{model}/config")
        if answer is None or answer.status != http.client.OK:
            return None
        with suppress(ValueError, LookupError, TypeError):
            return str(json.loads(answer.body)["parameters"][DIGEST]["string_value"])
        return ""

    def _get(self, path: str) -> Answer | None:
        try:
            until = time.monotonic() + _LIMIT_S
            return TritonHttp(self.host, self.port, deadline=until).ask("GET", path)
        except NoAnswerError:
            return None
