"""Load two servers far above what they can answer: one with bounds, one without."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from deploy.client.endpoint import Endpoint
from deploy.client.load.connection import Connections, as_request
from deploy.client.load.traffic import simulated_event
from deploy.client.transport import TritonTransport
from deploy.deployment.state import DeploymentFolder
from deploy.host.console import Say
from deploy.host.errors import KitError
from deploy.host.paths import CHECKOUT
from scripts.benchmarks.document import Document
from scripts.benchmarks.server import REQUEST_S, free_ports
from scripts.benchmarks.tables import Table

MODEL = "nugraph3"
ORDINARY, LIGHT, HEAVY = 1300, 200, 100_000
"""Hits of events."""
RATES = (0.5, 1, 2, 5, 10)
UNBOUNDED = {"waiting": 1_000_000, "wait_s": 3600, "hits": 100_000}
SERVERS: Mapping[str, Mapping[str, float]] = {"unbounded": UNBOUNDED, "bounded": {}}
_HEAVY_RATE, _HEAVY_REQUESTS, _LIGHT_RATE = 20, 200, 10
_LOOK_S = 0.2


class Peak:
    """The most memory that a server and its model processes held at once, resident, summed."""

    def __init__(self, server: int) -> None:
        self._server, self._ended = server, threading.Event()
        self.first_mb = self.most_mb = self._now()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _now(self) -> float:
        total = 0
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._server)
            for process in (first, *first.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total / 1e6

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.most_mb = max(self.most_mb, self._now())


@contextmanager
def servers(folder: Path, core: int, say: Say) -> Iterator[dict[str, str]]:
    """Run a server of each kind on one core; yield the addresses, by kind."""
    addresses = {}
    try:
        for kind, limits in SERVERS.items():
            say(f"starting a server: {kind}")
            ports = free_ports()
            lines = [f'engine = "local"\nmodels = ["{MODEL}"]', "[limits]"]
            lines += [f"{key} = {value}" for key, value in limits.items()]
            file = folder / f"{kind}.toml"
            file.write_text("\n".join(lines) + "\n")
            numbers = f"{ports.http},{ports.grpc},{ports.metrics}"
            _numlkit(core, "up", str(file), "--name", _name(kind), "--ports", numbers)
            addresses[kind] = f"grpc://127.0.0.1:{ports.grpc}"
        yield addresses
    finally:
        for kind in SERVERS:
            with suppress(KitError):
                _numlkit(core, "down", "--name", _name(kind))


def measure(
    addresses: Mapping[str, str], *, seconds: float, cores: Sequence[int], say: Say
) -> Document:
    """Load each server; return the run as JSON can hold it.

    Args:
        addresses: Of the servers, by kind.
        seconds: For each rate.
        cores: Those of the clients.
    """
    os.sched_setaffinity(0, cores)
    found: Document = {"overhead": overhead(addresses, rounds=max(10, int(4 * seconds)))}
    for kind, url in addresses.items():
        state = DeploymentFolder(_name(kind)).require_state()
        assert state.server is not None
        with Peak(state.server.pid) as peak:
            say(f"{kind}: offering events of {ORDINARY} hits")
            rates = ",".join(f"{rate:g}x" for rate in RATES)
            flags = ("--url", url, "--model", MODEL)
            overload = _load(
                cores, *flags, "--hits", str(ORDINARY), "--rates", rates,
                "--seconds", f"{seconds:g}",
            )  # fmt: skip
            say(f"{kind}: offering events of {HEAVY} hits beside those of {LIGHT}")
            beside = _load(
                cores, *flags, "--hits", str(LIGHT), "--rates", str(_LIGHT_RATE),
                "--tenant", f"heavy:{_HEAVY_RATE}:{HEAVY}",
                "--seconds", f"{_HEAVY_REQUESTS / _HEAVY_RATE:g}",
            )  # fmt: skip
        after = DeploymentFolder(_name(kind)).require_state()
        found[kind] = {
            "overload": overload,
            "beside": beside,
            "first_mb": round(peak.first_mb),
            "most_mb": round(peak.most_mb),
            "replaced": after.restarts + after.heals,
        }
    return found


def overhead(addresses: Mapping[str, str], *, rounds: int) -> Document:
    """Return what a request takes alone, of each server in turn: medians of many rounds."""
    model = _describe(next(iter(addresses.values())))
    random = np.random.default_rng(0)
    content = as_request(model, simulated_event(model.inputs, LIGHT, random))

    async def measured() -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {kind: [] for kind in addresses}
        opened = {k: Connections(Endpoint.parse(u), count=1) for k, u in addresses.items()}
        for connections in opened.values():
            await connections.__aenter__()
        try:
            for _ in range(rounds * 20):
                for kind, connections in opened.items():
                    begun = time.perf_counter()
                    answer, status, text = await connections.infer(content, REQUEST_S)
                    taken[kind].append(time.perf_counter() - begun)
                    if answer is None:
                        raise KitError(f"no answer: {text or status}")
        finally:
            for connections in opened.values():
                await connections.__aexit__()
        return taken

    times = asyncio.run(measured())
    p50 = {kind: round(median(each) * 1e3, 3) for kind, each in times.items()}
    return {"hits": LIGHT, "requests": rounds * 20, "p50_ms": p50}


def goodput(run: Document, kind: str) -> list[tuple[float, float]]:
    """Return offered load and goodput, as multiples of the kind's capacity."""
    told = run[kind]["overload"]
    rounds = [each["tenants"][0] for each in told["rounds"]]
    return [(e["offered"] / told["capacity"], e["goodput"] / told["capacity"]) for e in rounds]


def load_table(run: Document) -> Table:
    columns = (
        "server", "offered", "goodput", "of best", "p50 ms", "p99 ms", "refused", "late", "of",
    )  # fmt: skip
    rows = []
    for kind in SERVERS:
        best = max(good for _, good in goodput(run, kind))
        for rate, (_, good), each in zip(
            RATES, goodput(run, kind), run[kind]["overload"]["rounds"], strict=True
        ):
            figures = each["tenants"][0]
            rows.append((
                kind,
                f"{rate:g}x",
                f"{figures['goodput']:.1f}/s",
                f"{100 * good / best:.0f}%",
                *("-" if figures[k] is None else f"{figures[k]:.0f}" for k in ("p50_ms", "p99_ms")),
                *(str(figures[k]) for k in ("refused", "late", "arrived")),
            ))  # fmt: skip
    return Table(f"events of {ORDINARY} hits", columns, rows)


def section(run: Document) -> str:
    """Return the section of docs/load.md."""
    shares = {k: [good for _, good in goodput(run, k)] for k in SERVERS}
    told = run["bounded"]["overload"]
    lines = [
        f"Clients have a deadline of {told['deadline_s']:g} s and try {told['retries'] + 1} times, "
        "without a pause. An answer counts",
        f"if it is right and comes within {told['deadline_s']:g} s of the event's arrival. One "
        "instance on one core,",
        f"events of {ORDINARY:,} hits; unbounded is `waiting = {UNBOUNDED['waiting']}`,",
        f"`wait_s = {UNBOUNDED['wait_s']}`, `hits = {UNBOUNDED['hits']}`. Goodput is in multiples "
        "of what the server can",
        f"answer ({told['capacity']:.0f} events/s; load average "
        f"{run['machine']['load_before'][0]:.1f} before the run).",
        "",
        "| offered | " + " | ".join(f"{rate:g}x" for rate in RATES) + " |",
        "|---|" + "---|" * len(RATES),
        *(f"| {k} | " + " | ".join(f"{good:.2f}" for good in shares[k]) + " |" for k in SERVERS),
        "",
        "![Goodput against offered load](../scripts/data/speed/load.png)",
        "",
        f"Beside {_HEAVY_REQUESTS} requests of {HEAVY:,} hits in "
        f"{_HEAVY_REQUESTS // _HEAVY_RATE} s, a client that sends {_LIGHT_RATE} events of {LIGHT} "
        "hits a second:",
        "",
        "| | answered in time | p99 | most memory | processes replaced |",
        "|---|---|---|---|---|",
    ]
    for kind in SERVERS:
        light = run[kind]["beside"]["rounds"][0]["tenants"][0]
        share = 100 * light["goodput"] * run[kind]["beside"]["seconds"] / light["arrived"]
        p99 = "-" if light["p99_ms"] is None else f"{light['p99_ms']:.0f} ms"
        memory = f"{run[kind]['most_mb']:,} MB ({run[kind]['first_mb']:,} idle)"
        lines.append(f"| {kind} | {share:.0f}% | {p99} | {memory} | {run[kind]['replaced']} |")
    p50 = run["overhead"]["p50_ms"]
    lines += [
        "",
        f"Alone, a request of {LIGHT} hits takes {p50['bounded']:.2f} ms with bounds and "
        f"{p50['unbounded']:.2f} ms without (medians of {run['overhead']['requests']}).",
    ]
    return "\n".join(lines) + "\n"


def _describe(url: str) -> Any:
    transport = TritonTransport(Endpoint.parse(url), timeout=REQUEST_S)
    try:
        return transport.describe(MODEL)
    finally:
        transport.close()


def _name(kind: str) -> str:
    return f"benchmark-load-{kind}"


def _load(cores: Sequence[int], *flags: str) -> Any:
    return json.loads(_numlkit(cores[0], "load", *flags, "--json", cores=cores))


def _numlkit(core: int, *words: str, cores: Sequence[int] = ()) -> str:
    """Run a command of the kit on cores; return what it printed, or raise what it said."""
    command = [sys.executable, "-m", "deploy.main", *words]
    kept = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or {core})  # the child's, and those of what it starts
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    finally:
        os.sched_setaffinity(0, kept)
    if done.returncode:
        said = done.stderr.strip().removeprefix("error: ").splitlines()
        raise KitError(f"numlkit {words[0]}: {said[0] if said else done.returncode}")
    return done.stdout
