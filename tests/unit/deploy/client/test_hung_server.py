"""A server that hangs, or whose host is cut off, is away: its requests go to another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from deploy.client import endpoint
from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport
from deploy.host.errors import ServerAwayError
from deploy.host.paths import CHECKOUT

_SERVER = """\
import sys
from tests.cpp.scripted import scripted
with scripted() as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""
MODEL = ServedModel("nugraph3", {"hit_table_local_plane": "INT32"}, ("x_filter_u",), {})
EVENT = {"hit_table_local_plane": np.zeros(3, dtype=np.int32)}


def test_a_server_that_is_stopped_is_away_long_before_the_timeout(monkeypatch):
    waits = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = tuple((name, 300 if name in waits else value) for name, value in endpoint._OPTIONS)
    monkeypatch.setattr(endpoint, "_OPTIONS", options)
    words = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        words, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = Endpoint.parse(f"grpc://127.0.0.1:{process.stdout.readline().strip()}")
        transport = TritonTransport(address, timeout=60)
        try:
            assert len(transport.infer(MODEL, EVENT)["x_filter_u"]) == 3
            process.send_signal(signal.SIGSTOP)
            # The signal is sent before it is obeyed; this waits until all its threads have stopped.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            with pytest.raises(ServerAwayError):
                transport.infer(MODEL, EVENT)
        finally:
            transport.close()
            process.kill()
