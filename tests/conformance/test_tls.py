import os
import socket
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair

# A second loopback address stands for the one by which other hosts reach a server.
OUTSIDE = "127.0.0.2"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "site")


def flags(pair: Pair, site: Authority) -> list[str]:
    files = {"--tls-cert": pair.cert, "--tls-key": pair.key, "--tls-ca": site.file}
    words = ["--models", "nugraph3", "--instances", "1", "--listen", OUTSIDE]
    return words + [str(word) for flag_and_file in files.items() for word in flag_and_file]


@pytest.fixture(scope="module")
def mutual(kit, site):
    """A deployment with mutual TLS that listens where other hosts reach it."""
    pair = site.issue(OUTSIDE, name="server, with a comma")
    pair.key.chmod(0o640)  # the user in the kit's image is in group 0
    yield kit.up("mutual", *flags(pair, site))
    kit.end("mutual")


def is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_grpc_is_encrypted_and_the_rest_stays_on_this_host(kit, mutual, site):
    mine = site.issue("me")
    files = ("--cert", str(mine.cert), "--key", str(mine.key))
    answer = kit.json("smoke", "--name", "mutual", *files)
    assert answer["ok"], answer
    ports = mutual["ports"]
    assert [server["url"] for server in answer["servers"]] == [
        f"http://127.0.0.1:{ports['http']}",
        f"grpcs://{OUTSIDE}:{ports['grpc']}",
    ]
    assert {
        (address, use): is_open(address, port)
        for address in (OUTSIDE, "127.0.0.1")
        for use, port in ports.items()
    } == {
        (OUTSIDE, "http"): False,
        (OUTSIDE, "grpc"): True,
        (OUTSIDE, "metrics"): False,
        ("127.0.0.1", "http"): True,
        ("127.0.0.1", "grpc"): False,
        ("127.0.0.1", "metrics"): True,
    }


def test_a_client_without_a_certificate_is_not_let_in(kit, mutual):
    answer = kit.json("smoke", "--name", "mutual")
    assert [server["ok"] for server in answer["servers"]] == [True, False]
    assert answer["error"] == (
        f"grpcs://{OUTSIDE}:{mutual['ports']['grpc']} closes the connection after the TLS "
        "handshake: it requires a client certificate"
    )
    assert kit.json("status", "--name", "mutual")["ok"]


def test_the_private_key_is_named_but_never_written_down(kit, mutual):
    key = Path(mutual["tls"]["key"])
    secret = key.read_bytes().splitlines()[1]
    written = [path for path in kit.folder("mutual").rglob("*") if path.is_file()]
    assert kit.folder("mutual") / "state.json" in written
    assert not [path for path in written if secret in path.read_bytes()]


@pytest.mark.skipif(os.geteuid() != 0, reason="for others a container runs as the calling user")
def test_a_key_that_the_container_s_user_may_not_read_is_refused(kit, site):
    if kit.engine != "docker":
        pytest.skip("elsewhere the server runs as the calling user")
    pair = site.issue(OUTSIDE, name="closed")
    pair.key.chmod(0o600)
    answer = kit.json("up", "--name", "unreadable", *flags(pair, site))
    assert (answer["status"], answer["error"], answer["remedy"]) == (
        2,
        f"{pair.key} cannot be read by the server's user in the container (1000, group 0)",
        f"chgrp 0 {pair.key}; chmod g+r {pair.key}",
    )
