"""Pages over HTTP: whoever asks and goes away again does not show in the log."""

import socket
import struct
import time
import urllib.request
from contextlib import closing

import pytest

from numl_formats.metrics import serve

REQUEST = b"GET /metrics HTTP/1.0\r\n\r\n"


@pytest.mark.parametrize("sent", [REQUEST, REQUEST[:9]])
def test_a_client_that_goes_away_leaves_no_traceback_and_others_their_answers(sent, capfd):
    asked = []

    def page():
        time.sleep(0.2)  # the client is gone by then
        asked.append(True)
        return 200, "x" * 2_000_000

    with serve({"/metrics": page, "/ready": lambda: (200, "ready")}, "127.0.0.1", 0) as server:
        host, port = server.server_address[:2]
        with closing(socket.create_connection((host, port))) as client:
            # Its end is an error at once, as of a process that is killed with unread answers.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(sent)
            time.sleep(0.05)
        time.sleep(0.5)
        assert bool(asked) == (sent == REQUEST)
        with urllib.request.urlopen(f"http://{host}:{port}/ready", timeout=10) as answer:
            assert answer.read() == b"ready"
        server.shutdown()
    assert capfd.readouterr() == ("", "")
