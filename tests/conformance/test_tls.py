import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority, Pair
from tests.kit import SMALL
from tests.tls import OUTSIDE, smoke, told, url


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "site")


def flags(pair: Pair, site: Authority) -> list[str]:
    files = {"--tls-cert": pair.cert, "--tls-key": pair.key, "--tls-ca": site.file}
    words = [str(word) for flag_and_file in files.items() for word in flag_and_file]
    return [*SMALL, "--listen", OUTSIDE, *words]


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
        url(mutual),
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


def test_a_client_without_a_certificate_is_not_let_in(kit, mutual, site):
    answer = kit.json("smoke", "--name", "mutual")
    assert [server["ok"] for server in answer["servers"]] == [True, False]
    expected = (
        f"{url(mutual)} closes the connection after the TLS handshake: it requires a client "
        "certificate",
        "--cert FILE --key FILE",
    )
    assert told(answer) == told(smoke(kit, url(mutual), "--ca", site.file)) == expected
    assert kit.json("status", "--name", "mutual")["ok"]


def test_a_client_s_certificate_lets_it_in_if_the_server_s_authority_signed_it(
    kit, mutual, site, tmp_path
):
    def asked(client: Pair) -> dict[str, Any]:
        files = ("--ca", site.file, "--cert", client.cert, "--key", client.key)
        return smoke(kit, url(mutual), *files)

    assert asked(site.issue("me"))["ok"]
    mine = Authority(tmp_path, "stranger").issue("me")
    assert told(asked(mine)) == (
        f"{url(mutual)} does not accept the client certificate {mine.cert}",
        "use --cert and --key of a client that the server's authority (its --tls-ca) signed",
    )


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
