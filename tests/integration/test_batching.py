"""Requests that wait join into one run of the network, through a real Triton."""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from prometheus_client.parser import text_string_to_metric_families

from deploy.paths import CHECKOUT
from tests.conformance.test_wire import Tensors, ask, read_event
from tests.kit import Kit

EVENTS, CLIENTS = 5, 8


def counted(answer: dict[str, Any]) -> dict[str, float]:
    """Return the model's own counters; they are published a tenth of a second late."""
    time.sleep(0.5)
    address = f"http://127.0.0.1:{answer['ports']['metrics']}/metrics"
    with urllib.request.urlopen(address, timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {s.name: s.value for f in families for s in f.samples if s.name.startswith("nugraph_")}


def test_each_of_the_requests_that_join_gets_its_own_answer(kit: Kit, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[batch]\nmax_events = 8\nwait_ms = 100\n")
    answer = kit.up("joined", str(site), "--models", "nugraph3", "--instances", "1")
    events = [
        read_event(CHECKOUT / "scripts" / "data" / "demo_events.h5", index)
        for index in range(EVENTS)
    ]
    with grpc.InferenceServerClient(f"127.0.0.1:{answer['ports']['grpc']}") as client:

        def asked(event: Tensors) -> Tensors:
            return ask(client, grpc, "nugraph3", event)

        alone = [asked(event) for event in events]
        before = counted(answer)
        with ThreadPoolExecutor(CLIENTS) as clients:
            together = list(clients.map(asked, events * 4))
    after = counted(answer)
    for index, tensors in enumerate(together):
        for name, expected in alone[index % EVENTS].items():
            np.testing.assert_allclose(tensors[name], expected, rtol=1e-4, atol=1e-5)
    events_total, batches_total = (
        after[name] - before[name] for name in ("nugraph_events_total", "nugraph_batches_total")
    )
    assert events_total == 4 * EVENTS
    assert batches_total <= events_total / 2
    kit.down("joined")
