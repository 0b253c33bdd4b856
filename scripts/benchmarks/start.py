"""Start servers, one after the other, and show where the time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from deploy.deployment.deployment import Deployment
from deploy.host.console import Say
from deploy.triton.start import PHASES, InstanceStart, read_starts
from scripts.benchmarks.document import Document
from scripts.benchmarks.server import BenchmarkServer, benchmark_server
from scripts.benchmarks.tables import Table


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from a launch until every model has given its reference output.

    ``processor`` is the time (s) that server and instances took on processors for it, which a busy
    machine disturbs least.
    """

    seconds: float
    processor: float
    instances: tuple[InstanceStart, ...]


def measure_starts(deployment: Deployment, rounds: int, say: Say) -> list[Start]:
    starts = []
    for _ in range(rounds):
        with benchmark_server(deployment, ("ours",), say) as server:
            used = _processor_seconds(server)
            starts.append(Start(server.seconds_to_ready, used, read_starts(server.log())))
        say(f"ready after {starts[-1].seconds:.1f} s")
    return starts


def _processor_seconds(server: BenchmarkServer) -> float:
    """Return the CPU time used by a server and its instances, which are idle now."""
    assert server.process.identity is not None
    processes = [psutil.Process(server.process.identity.pid)]
    processes += [psutil.Process(stub.process.pid) for stub in server.stubs()]
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def start_document(starts: Sequence[Start], models: int) -> Document:
    """Return starts of ``models`` models as JSON data: medians over instances, longest (s)."""
    every = [instance for start in starts for instance in start.instances]
    phases = {phase: [instance.phases[phase] for instance in every] for phase in PHASES}
    ready = [max(each.seconds for each in start.instances) for start in starts]
    whole = [start.seconds for start in starts]
    used = [start.processor for start in starts]
    return {
        "format": 1,
        "starts": len(starts),
        "models": models,
        "instances": len(every) // len(starts),
        "phases": {name: statistics.median(seconds) for name, seconds in phases.items()},
        "longest": {name: max(seconds) for name, seconds in phases.items()},
        "ready": {"median": statistics.median(ready), "longest": max(ready)},
        "answered": {"median": statistics.median(whole), "longest": max(whole)},
        "processor": {"median": statistics.median(used), "longest": max(used)},
    }


def start_table(run: Document) -> Table:
    rows = [
        (name, f"{seconds:.2f}", f"{run['longest'][name]:.2f}")
        for name, seconds in run["phases"].items()
    ]
    for name, key in (
        ("last instance ready", "ready"),
        ("all models answered", "answered"),
        ("processor time of all", "processor"),
    ):
        rows.append((name, f"{run[key]['median']:.2f}", f"{run[key]['longest']:.2f}"))
    title = (
        f"{run['starts']} starts of {run['models']} models with {run['instances']} instances in all"
    )
    return Table(title, ("s", "median", "longest"), rows)
