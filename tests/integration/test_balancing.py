"""The client library with real servers: one is killed while clients are balancing over them."""

from __future__ import annotations

import os
import signal
from itertools import cycle, islice

import numpy as np

from numlkit import Client, Labelled
from tests.inputs import EVENTS
from tests.kit import SMALL

REQUESTS = 400


def test_a_server_that_is_killed_costs_no_request(kit):
    ports = [kit.up(name, *SMALL)["ports"]["grpc"] for name in ("left", "right")]
    urls = [f"grpc://127.0.0.1:{port}" for port in ports]
    with Client(*urls, concurrency=8) as client:
        events = sorted(client.read(EVENTS), key=lambda event: event.hits)[:3]
        expected = {e.event_id: client.label(e).labels.label for e in events}
        answered = 0
        for outcome in client.label_all(islice(cycle(events), REQUESTS)):
            assert isinstance(outcome, Labelled), outcome
            assert np.array_equal(outcome.labels.label, expected[outcome.event_id])
            answered += 1
            if answered == REQUESTS // 4:
                os.kill(kit.noted("left")["server"]["pid"], signal.SIGKILL)
    assert answered == REQUESTS
