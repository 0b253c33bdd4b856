"""Watch the memory of model instances while they answer thousands of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from deploy.host.console import Say
from scripts.benchmarks.cells import Tensors
from scripts.benchmarks.clients import connector, send_all
from scripts.benchmarks.document import Document
from scripts.benchmarks.server import REQUEST_S, BenchmarkServer
from scripts.benchmarks.tables import Table

_MB = 1e6
_LOOKS = 25


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory of one model instance.

    Attributes:
        events: Events that its model had answered at each look.
        resident: Resident bytes at each look, of libraries that it shares with others, too.
        own: Bytes that it shares with nobody, at the last look.
    """

    instance: str
    events: tuple[int, ...]
    resident: tuple[int, ...]
    own: int
    threads: int

    def after(self, events: int) -> float:
        """Return the resident megabytes at the first sample after so many events."""
        index = min(int(np.searchsorted(self.events, events)), len(self.events) - 1)
        return self.resident[index] / _MB

    def slope(self, since: int) -> float:
        """Return by how many megabytes a thousand events made it grow, after the first ones.

        In those, memory is taken that is then used again.
        """
        chosen = [(e, r) for e, r in zip(self.events, self.resident, strict=True) if e >= since]
        if len(chosen) < 2:
            return float("nan")
        events, resident = np.array(chosen, float).T
        slope, _ = np.polyfit(events / 1000, resident / _MB, 1)
        return float(slope)


def watch_memory(
    server: BenchmarkServer, model: str, events: Sequence[Tensors], *, count: int, say: Say
) -> list[Growth]:
    """Send ``count`` events to a model, and look at its instances' memory now and then.

    ``events`` are sent again and again, by as many clients as there are instances.
    """
    stubs = [stub for stub in server.stubs() if stub.model == model]
    processes = [psutil.Process(stub.process.pid) for stub in stubs]
    described = server.describe(model)
    looks: list[int] = []
    resident: list[list[int]] = [[] for _ in processes]
    sent = 0
    while True:
        looks.append(sent)
        for process, seen in zip(processes, resident, strict=True):
            seen.append(process.memory_info().rss)
        if sent >= count:
            break
        step = min(max(count // _LOOKS, 1), count - sent)
        send_all(
            connector("grpc", server.addresses, REQUEST_S),
            described,
            [events[(sent + number) % len(events)] for number in range(step)],
            clients=len(processes),
        )
        sent += step
        say(f"{model}: {sent} of {count} events")
    return [
        Growth(
            instance=f"{model}, process {process.pid}",
            events=tuple(looks),
            resident=tuple(seen),
            own=process.memory_full_info().uss,
            threads=process.num_threads(),
        )
        for process, seen in zip(processes, resident, strict=True)
    ]


def memory_document(
    growths: Sequence[Growth], *, settled: int, count: int, hits: tuple[int, int]
) -> Document:
    """Return the run as JSON can hold it.

    After ``settled`` of ``count`` events, memory that is taken is used again; ``hits`` are the
    sizes of the smallest and the largest event.
    """
    return {
        "format": 1,
        "settled": settled,
        "events": count,
        "hits": list(hits),
        "instances": [
            {
                "instance": growth.instance,
                "first_mb": growth.resident[0] / _MB,
                "settled_mb": growth.after(settled),
                "last_mb": growth.resident[-1] / _MB,
                "own_mb": growth.own / _MB,
                "slope_mb": growth.slope(settled),
                "threads": growth.threads,
            }
            for growth in growths
        ],
    }


def memory_table(run: Document) -> Table:
    columns = (
        "instance", "at the start", f"after {run['settled']}", f"after {run['events']}",
        "of its own", "per 1000 more", "threads",
    )  # fmt: skip
    rows = [
        (
            each["instance"],
            *(f"{each[key]:.0f}" for key in ("first_mb", "settled_mb", "last_mb", "own_mb")),
            f"{each['slope_mb']:+.2f}",
            str(each["threads"]),
        )
        for each in run["instances"]
    ]
    smallest, largest = run["hits"]
    title = f"resident memory (MB), events of {smallest} to {largest} hits"
    return Table(title, columns, rows)
