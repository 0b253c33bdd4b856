"""The login of a keyless signature, by cosign itself, at a server of this host's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from deploy.artefacts.cosign import sign_file
from deploy.artefacts.keys import Keyless
from deploy.host.errors import SignatureError
from tests.kit import lacking

SOON_S = 30


class Issuer(ThreadingHTTPServer):
    """Gives out a code for a device, and refuses it once its page has been shown."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.shown, self.in_time = Event(), False

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        if path.endswith("/openid-configuration"):
            ends = {"authorization": "auth", "device_authorization": "device", "token": "token"}
            return 200, {
                "issuer": self.url,
                **{f"{name}_endpoint": f"{self.url}/{end}" for name, end in ends.items()},
                "jwks_uri": f"{self.url}/keys",
                "code_challenge_methods_supported": ["S256"],
            }
        if path == "/device":
            page = f"{self.url}/page"
            code = {"device_code": "d", "user_code": "ABCD", "verification_uri_complete": page}
            return 200, {**code, "expires_in": 300, "interval": 1}
        self.in_time = self.shown.wait(SOON_S)
        return 400, {"error": "access_denied"}


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, document = self.server.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """Where cosign logs in: the kit has no option for another place than Sigstore's."""
    cosign = shutil.which("cosign")
    if cosign is None:
        lacking("no cosign to test with: sudo scripts/install_container_tools --only cosign")
    monkeypatch.delenv("SIGSTORE_ID_TOKEN", raising=False)
    with Issuer() as server:
        program = tmp_path / "bin" / "cosign"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {cosign} "$@" --oidc-issuer {server.url}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_page_to_log_in_at_is_shown_while_cosign_waits_for_it(
    issuer: Issuer, tmp_path: Path
) -> None:
    lines = []

    def show(line: str) -> None:
        lines.append(line)
        issuer.shown.set()

    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SignatureError, match=r"cosign cannot sign .* keyless: .*access_denied"):
        sign_file(file, tmp_path / "bundle", Keyless(show))
    assert issuer.in_time
    assert lines[0] == f"Enter the verification code ABCD in your browser at: {issuer.url}/page"
    assert lines[1:] == ["Code will be valid for 300 seconds"]
