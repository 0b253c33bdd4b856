"""Start servers, one after the other, and tell where the time goes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.server.start import PHASES, InstanceStart, read_starts
from deploy.speed.server import benchmark_server
from deploy.speed.tables import Table


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        seconds: From the launch until every model had given its golden answer.
        instances: The starts of the model instances.
    """

    seconds: float
    instances: tuple[InstanceStart, ...]


def measure_starts(deployment: Deployment, rounds: int, say: Say) -> list[Start]:
    """Start a server so many times.

    Args:
        deployment: Prepared.
        rounds: How many times.
        say: Is told what happens.

    Raises:
        KitError: If a server does not become ready.
    """
    starts = []
    for _ in range(rounds):
        with benchmark_server(deployment, ("ours",), say) as server:
            starts.append(Start(server.seconds_to_ready, read_starts(server.log())))
        say(f"ready after {starts[-1].seconds:.1f} s")
    return starts


def start_table(starts: list[Start], models: int) -> Table:
    """Return the phases of the starts: medians of all instances, and the slowest."""
    every = [instance for start in starts for instance in start.instances]
    rows = []
    for index, phase in enumerate(PHASES):
        seconds = [instance.phases[index] for instance in every]
        rows.append((phase, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"))
    ready = [max(each.seconds for each in start.instances) for start in starts]
    rows.append(("last instance ready", f"{statistics.median(ready):.2f}", f"{max(ready):.2f}"))
    whole = [start.seconds for start in starts]
    rows.append(("all models answered", f"{statistics.median(whole):.2f}", f"{max(whole):.2f}"))
    instances = len(every) // len(starts)
    title = f"{len(starts)} starts of {models} models with {instances} instances in all"
    return Table(title, ("s", "median", "longest"), rows)
