"""Releases of Triton side by side: how fast each starts and answers, and what it takes on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from deploy.artefacts.manifest import read_manifest
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Say
from scripts.benchmarks.cells import EventSet, Server
from scripts.benchmarks.clients import connector, drive
from scripts.benchmarks.document import Document, spread
from scripts.benchmarks.server import (
    REQUEST_S,
    BenchmarkEngine,
    BenchmarkServer,
    benchmark_server,
    served_name,
)
from scripts.benchmarks.tables import Table

CLIENTS = 8
_KINDS = ("image", "sif")


def measure_releases(
    deployments: Sequence[Deployment],
    sets: Sequence[EventSet],
    *,
    rounds: int,
    seconds: float,
    built: Sequence[Path],
    say: Say,
) -> Document:
    """Start each release's server in turn, then let clients ask all of them in turn.

    Args:
        deployments: One for each release; the others are compared with the first.
        sets: The events that clients send.
        rounds: How often everything has its turn.
        seconds: Of one turn of the clients.
        built: Folders in which ``numlkit build`` has left its artefacts.
    """
    found = [_facts(deployment, built, say) for deployment in deployments]
    for _ in range(rounds):
        for deployment, release in zip(deployments, found, strict=True):
            with benchmark_server(deployment, ("ours",), say) as server:
                release["starts"].append(server.seconds_to_ready)
            say(f"Triton {release['release']}: ready after {server.seconds_to_ready:.2f} s")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(benchmark_server(d, ("ours", "fixed"), say)) for d in deployments
        ]
        models = deployments[0].models
        cells: list[tuple[str, EventSet, Server]] = [
            (model, events, "ours") for model, events in product(models, sets)
        ]
        cells.append((models[0], sets[0], "fixed"))  # what Triton alone takes
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for model, events, kind in cells:
                rates = np.zeros(len(servers))
                # There and back: what changes steadily meanwhile favours none of them.
                for place in (*range(len(servers)), *reversed(range(len(servers)))):
                    name = served_name(model, kind)
                    rates[place] += _rate(servers[place], name, events, seconds) / 2
                for release, rate in zip(found, rates, strict=True):
                    key = f"{model}, {events.name}" + ", no network" * (kind == "fixed")
                    release["rates"].setdefault(key, []).append(float(rate))
    return {"format": 1, "clients": CLIENTS, "rounds": rounds, "releases": found}


def _rate(server: BenchmarkServer, model: str, events: EventSet, seconds: float) -> float:
    connect = connector("grpc", server.addresses, REQUEST_S)
    return drive(
        connect, server.describe(model), events.events, concurrency=CLIENTS, seconds=seconds
    ).rate


def _facts(deployment: Deployment, built: Sequence[Path], say: Say) -> Document:
    """Prepare a release; return what is known of it before it runs."""
    engine = BenchmarkEngine(Resolved(deployment))
    engine.prepare(say)
    release, root = engine.resolved.release, engine.distribution.root
    sizes = {"server": sum(path.stat().st_size for path in root.rglob("*") if path.is_file())}
    for artefact in (each for folder in built for each in read_manifest(folder).artefacts):
        if artefact.kind in _KINDS and artefact.inputs.get("triton") == release.server:
            sizes[artefact.kind] = artefact.bytes
    python = engine.environment_here.lock.python
    names = {"release": release.release, "server": release.server, "python": python}
    return {**names, "bytes": sizes, "starts": [], "rates": {}}


def releases_table(run: Document) -> Table:
    """Return the figures as a table."""
    first, *_ = run["releases"]
    events = tuple(first["rates"])
    columns = (
        *("Triton", "server", "Python", "ready after"),
        *(f"{each}, events/s" for each in events),
        *("server MB", "image MB", ".sif MB"),
    )
    rows = [tuple(_row(release, first, events)) for release in run["releases"]]
    note = (
        f"Medians of {run['rounds']} rounds, with {run['clients']} clients; in brackets, against "
        f"{first['release']} in the same round."
    )
    return Table("releases of Triton, in turn", columns, rows, (note,))


def _row(release: Document, first: Document, events: Sequence[str]) -> Iterator[str]:
    yield from (release["release"], release["server"], release["python"])
    yield f"{median(release['starts']):.2f} s"
    for each in events:
        rates, other = (np.array(one["rates"][each]) for one in (release, first))
        against = "" if release is first else f" ({spread(rates / other)['median'] - 1:+.1%})"
        yield f"{np.median(rates):.0f}{against}"
    for kind in ("server", *_KINDS):
        size = release["bytes"].get(kind)
        yield "-" if size is None else f"{size / 1e6:.0f}"


def releases_page(run: Document) -> str:
    """Return the figures as Markdown."""
    table = releases_table(run)
    lines = [
        f"| {' | '.join(table.columns)} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(row)} |" for row in table.rows),
        "",
        *table.notes,
    ]
    return "\n".join(lines) + "\n"
