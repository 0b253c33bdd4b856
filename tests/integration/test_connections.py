"""Where a server listens, and how many connections it takes, whatever shell has started it."""

import os
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest

from deploy.client.probe import Probe, smoke
from deploy.deployment.ports import is_free
from deploy.host.errors import DeploymentError
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.triton.golden import golden_of
from tests.programs import run_program

MODEL = "nugraph3"
# Most shells have 1024; a server itself needs about 70.
FILES, CONNECTIONS = 256, 400


def test_clients_that_keep_connections_open_shut_nobody_out(kit):
    few = replace(kit, within=("sh", "-c", f'ulimit -Sn {FILES}; exec "$@"', "sh"))
    ports = few.up("connected", "--models", MODEL, "--instances", "1")["ports"]
    probe = Probe(f"http://127.0.0.1:{ports['http']}", timeout=20)
    with ExitStack() as connections:
        for _ in range(CONNECTIONS):
            address = ("127.0.0.1", ports["grpc"])
            connections.enter_context(socket.create_connection(address, timeout=20))
        answer = smoke(probe, MODEL, golden_of(MODEL_REPOSITORY / MODEL))
    assert answer.ok, answer.error
    few.end("connected")


def test_a_server_listens_on_an_ipv6_address(kit):
    try:
        is_free("::1", 1024)
    except DeploymentError as error:
        pytest.skip(error.cause)
    listen = ("--listen", "::1")
    ports = kit.up("ipv6", *listen, "--models", MODEL, "--instances", "1")["ports"]
    status = kit.json("status", "--name", "ipv6")
    assert (status["status"], status["problems"]) == (0, [])
    for protocol in ("http", "grpc"):
        url = f"{protocol}://[::1]:{ports[protocol]}"
        smoked = kit.json("smoke", "--url", url, "--models", MODEL)
        assert smoked["status"] == 0, smoked
    # What an image's server is asked by.
    where = {"NUML_LISTEN_HTTP": "::1", "NUML_HTTP_PORT": str(ports["http"])}
    done = run_program(
        [CHECKOUT / "containers" / "probe", "ready", MODEL],
        env={"PATH": os.environ["PATH"], **where},
    )
    assert (done.returncode, done.stdout) == (0, "")
    kit.end("ipv6")
