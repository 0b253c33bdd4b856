"""A registry of images that is played, with its faults."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, urlsplit

from tests.releases import Blob, manifest


class Registry(ThreadingHTTPServer):
    """Serves one image, ``r/i:t``; ``cut`` bytes of a blob at a time, ``ranges`` or whole.

    Attributes:
        document: The image's manifest, which it answers for any other name, too; or None.
        manifests: What it answers for other names than the image's, or for that one.
        tags: Digests by their tags, which it lists in pages of two.
        elsewhere: Where it redirects to, as ``http://HOST:PORT``; empty: it answers itself.
        challenge: What it answers (``WWW-Authenticate``) to who shows it neither a token of its own
            nor a password.
        token: What it answers to who asks for a token.
        endless: What it repeats for ever instead of any manifest or list of tags, or as a token.
        packed: What it answers there with ``Content-Encoding: gzip``.
        asked: The paths that it was asked for, each with the ``Authorization`` sent to it.
        forms: What was sent to it by POST, by names.
    """

    def __init__(self, content: list[Blob], host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.document, configuration = manifest(content)
        self.blobs = {blob.digest: blob.content for blob in (*content, configuration)}
        self.manifests: dict[str, Blob] = {}
        self.tags: dict[str, str] = {}
        self.cut, self.ranges, self.sent, self.refuses = 1 << 40, True, 0, 0
        self.elsewhere, self.challenge = "", ""
        self.token = b'{"token": "own"}'
        self.endless, self.packed = b"", b""
        self.asked: list[tuple[str, str | None]] = []
        self.forms: list[dict[str, str]] = []
        self.address = f"{host}:{self.server_address[1]}"
        self.name = f"{self.address}/r/i"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        here, shown = self.server, self.headers.get("Authorization")
        here.asked.append((self.path, shown))
        kind, name = self.path.partition("?")[0].split("/")[-2:]
        if here.refuses:
            here.refuses -= 1
            self.send_error(503)
        elif here.elsewhere:
            self._answer(307, Location=f"{here.elsewhere}{self.path}")
        elif here.endless and (kind in ("manifests", "tags") or name == "token"):
            self._never_end(here.endless)
        elif here.packed and (kind in ("manifests", "tags") or name == "token"):
            self._answer(200, here.packed, Content_Encoding="gzip")
        elif name == "token":
            self._answer(200, here.token)
        elif here.challenge and shown != "Bearer own" and not (shown or "").startswith("Basic "):
            self._answer(401, WWW_Authenticate=here.challenge)
        elif kind == "tags":
            self._list_tags()
        elif kind == "manifests":
            self._send_manifest(name)
        elif name not in here.blobs:
            self.send_error(404)
        else:
            self._send_blob(here.blobs[name])

    def do_POST(self) -> None:
        here, form = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        here.forms.append(dict(parse_qsl(form.decode(), strict_parsing=True)))
        if here.elsewhere:
            self._answer(307, Location=f"{here.elsewhere}{self.path}")
        else:
            self._answer(200, here.token)

    def _list_tags(self) -> None:
        after = parse_qs(urlsplit(self.path).query).get("last", [""])[0]
        tags = [tag for tag in sorted(self.server.tags) if tag > after]
        following = f'</v2/r/i/tags/list?n=2&last={"".join(tags[1:2])}>; rel="next"'
        more = {"Link": following} if tags[2:] else {}
        self._answer(200, json.dumps({"tags": tags[:2]}).encode(), **more)

    def _send_manifest(self, name: str) -> None:
        digest = self.server.tags.get(name, name)
        found = self.server.manifests.get(digest, self.server.document)
        if found is None:
            self.send_error(404)
        else:
            said = {"Docker-Content-Digest": digest} if digest != name else {}
            self._answer(200, found.content, **said)

    def _never_end(self, content: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):  # until nobody reads it
            while True:
                self.server.sent += self.wfile.write(content)

    def _send_blob(self, content: bytes) -> None:
        here = self.server
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is not None and here.ranges:
            content = content[int(asked[1]) : int(asked[2]) + 1]
        here.sent += len(content[: here.cut])
        self._answer(206 if asked is not None and here.ranges else 200, content, here.cut)

    def _answer(self, status: int, content: bytes = b"", cut: int = 1 << 40, **more: str) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])
        self.close_connection = True

    def log_message(self, *_words: object) -> None:
        pass
