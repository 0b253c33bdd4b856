"""A server takes as many connections as its host allows, whatever shell has started it."""

import socket
from contextlib import ExitStack
from dataclasses import replace

from deploy.client.probe import Probe, smoke
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.golden import golden_of

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
