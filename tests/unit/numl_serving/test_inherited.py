"""Which sockets a model process closes when it starts."""

import subprocess
import sys
from pathlib import Path

from numl_serving.inherited import STUB, close_inherited_connections

_ASKS = """
import os, socket, sys
from pathlib import Path
from numl_serving.inherited import close_inherited_connections
listening, (one, other) = socket.create_server(("127.0.0.1", 0)), socket.socketpair()
client = socket.create_connection(listening.getsockname())
server, _ = listening.accept()
file = open(sys.argv[1])
print(close_inherited_connections(Path(sys.argv[1])))
one.send(b"still"), print(other.recv(5).decode(), file.closed, os.fstat(file.fileno()).st_size >= 0)
for each in (listening, client, server):
    try:
        os.fstat(each.fileno())
        print("open")
    except OSError:
        print("closed")
    each.detach()
"""


def run(executable: Path) -> list[str]:
    words = [sys.executable, "-c", _ASKS, str(executable)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_a_stub_closes_its_server_s_connections_and_nothing_else(tmp_path):
    (tmp_path / STUB).touch()
    (tmp_path / "exe").symlink_to(tmp_path / STUB)
    assert run(tmp_path / "exe") == ["3", "still False True", *["closed"] * 3]


def test_any_other_process_keeps_all_of_them(tmp_path):
    (tmp_path / "python").touch()
    (tmp_path / "exe").symlink_to(tmp_path / "python")
    assert run(tmp_path / "exe") == ["0", "still False True", *["open"] * 3]
    assert close_inherited_connections() == 0
