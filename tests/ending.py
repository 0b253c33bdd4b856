"""Requests that end a Triton 2.51 reached over HTTP, and a front door must refuse."""

import gzip
import http.client
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

_ANSWER_S = 60


@dataclass(frozen=True)
class Ending:
    """A request of this kind."""

    name: str
    body: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    asks: str = "infer"

    def __str__(self) -> str:
        return self.name

    def send_refused(self, host: str, port: int, authority: Path) -> None:
        """Send it over HTTPS; it must be refused, or its connection closed."""
        trusted = ssl.create_default_context(cafile=authority)
        client = http.client.HTTPSConnection(host, port, context=trusted, timeout=_ANSWER_S)
        with closing(client), suppress(OSError):  # it may be refused before it has been sent
            client.request(
                "POST", f"/v2/models/nugraph3/{self.asks}", self.body(), dict(self.headers)
            )
            assert client.getresponse().status >= http.client.BAD_REQUEST


_NESTED = (
    b'{"inputs":[{"name":"hit_table_hit_id","datatype":"INT32","shape":[1],"data":%b1%b}]}'
    % (
        b"[" * 10**5,
        b"]" * 10**5,
    )
)
_LENGTH = "Inference-Header-Content-Length"
# The whole of it is JSON, whatever the header says.
_GENERATE = b'{"hit_table_hit_id":%b1%b}' % (b"[" * 10**5, b"]" * 10**5)

ENDING_HTTP = (
    Ending("JSON", lambda: _NESTED),
    Ending("declared", lambda: _NESTED, {_LENGTH: str(len(_NESTED))}),
    Ending("declared twice", lambda: _NESTED, {_LENGTH: f"{len(_NESTED)}, 10"}),
    *(
        Ending(asks, lambda: _GENERATE, {_LENGTH: "4"}, asks)
        for asks in ("generate", "generate_stream")
    ),
    Ending("compressed", lambda: gzip.compress(_NESTED), {"Content-Encoding": "gzip"}),
    Ending(
        "in a million pieces",
        lambda: b"1\r\n \r\n" * 10**6 + b"0\r\n\r\n",
        {_LENGTH: "9999", "Transfer-Encoding": "chunked"},
    ),
)
