"""The README's section on speed, made from stored runs."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.errors import KitError
from deploy.speed.document import GRADIENTS_OFF, SERVING, Document, find
from deploy.speed.tables import ms, times

BEGIN = "<!-- speed: made by scripts/benchmark.py readme from scripts/data/speed -->"
END = "<!-- /speed -->"
PLOT = "scripts/data/speed/speed.png"
SETS = ("200 hits", "1300 hits")


def replace_section(readme: str, section: str) -> str:
    """Return a README with another section on speed.

    Raises:
        KitError: If it has no such section.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise KitError("README.md has no section on speed", f"put {BEGIN} and {END} into it")
    return f"{before}{BEGIN}\n{section}{END}{after}"


def section(speed: Document, memory: Document, start: Document) -> str:
    """Return the section.

    Args:
        speed: A run of ``benchmark.py``.
        memory: A run of ``benchmark.py memory``.
        start: A run of ``benchmark.py start``.
    """
    machine = speed["machine"]
    lines = [
        "`scripts/benchmark.py` sends the same events to this kit and to NuGraph's own code "
        "(pynuml, PyTorch",
        "Geometric, nugraph 24.7.1) in the same Triton, in turn, clients on the same "
        f"{len(machine['used_cores'])} cores",
        f"({machine['processor']}, torch {machine['torch']}; load average "
        f"{machine['load_before'][0]:.1f} before the run). Medians by gRPC,",
        "between which values the middle 80% of rounds lie, and how much faster than NuGraph as it "
        "is served",
        "today: one instance with torch's own threads. At its best it has an instance per core and "
        "no gradients.",
        "Events are typical ones: of twice as many simulated, the half nearest to the median "
        "number of spacepoints.",
        "About one in six has several times as many as the others of its size, and takes longer.",
        "",
        "| | events | NuGraph as served today | at its best | this kit | faster |",
        "|---|---|---|---|---|---|",
        *_served(speed),
        "",
        "In one process, on one core, against NuGraph's own code with gradients off:",
        "",
        "| | events | graph ms | network ms | event ms | NuGraph's | faster |",
        "|---|---|---|---|---|---|---|",
        *_alone(speed),
        "",
        f"![Latency against hits, throughput against clients]({PLOT})",
        "",
        *_shares(speed),
        *_memory(memory),
        *_start(start),
    ]
    return "\n".join(lines) + "\n"


def _served(run: Document) -> Iterator[str]:
    counts = sorted({entry["concurrency"] for entry in run["served"]})
    for model in run["models"]:
        for events in SETS:
            for clients, what in ((counts[0], "latency"), (counts[-1], "events_per_second")):
                found = {
                    server: find(
                        run["served"], model=model, events=events, server=server,
                        protocol="grpc", concurrency=clients,
                    )
                    for server in ("today", "best", "ours")
                }  # fmt: skip
                ratios = find(
                    run["served_ratios"], model=model, events=events, protocol="grpc",
                    against="today", concurrency=clients,
                )  # fmt: skip
                cells = [_value(found[server], what) for server in ("today", "best", "ours")]
                plural = "s" if clients > 1 else ""
                yield (
                    f"| {model}, {clients} client{plural} | {events} | {' | '.join(cells)} "
                    f"| {times(ratios[what]) if ratios else '-'} |"
                )


def _value(entry: Document | None, what: str) -> str:
    if entry is None:
        return "-"
    if what == "latency":
        return f"{ms(entry['latency']['p50'])} ms"
    return f"{entry['events_per_second']['median']:.0f} events/s"


def _alone(run: Document) -> Iterator[str]:
    for model in run["models"]:
        for events in SETS:
            named = {"model": model, "events": events}
            ours = find(run["in_process"], path=SERVING, **named)
            theirs = find(run["in_process"], path=GRADIENTS_OFF, **named)
            ratio = find(run["in_process_ratios"], of=SERVING, against=GRADIENTS_OFF, **named)
            if ours and theirs and ratio:
                parts = (ms(ours[stage]["p50"]) for stage in ("preprocess", "network", "event"))
                yield (
                    f"| {model} | {events} | {' | '.join(parts)} | {ms(theirs['event']['p50'])} "
                    f"| {times(ratio['event'])} |"
                )


def _shares(run: Document) -> Iterator[str]:
    entry = find(run["served"], events=SETS[-1], server="ours", protocol="grpc", concurrency=1)
    if entry is None:
        return
    mean = entry["latency"]["mean"]
    graph, network = entry["preprocess"] / mean, entry["network"] / mean
    yield (
        f"Of a round trip of {ms(entry['latency']['p50'])} ms ({entry['model']}, {SETS[-1]}; p99 "
        f"{ms(entry['latency']['p99'])} ms) the graph takes {graph:.0%}, the network "
        f"{network:.0%},"
    )
    yield (
        f"and Triton, transport and client {1 - graph - network:.0%}: "
        f"{ms(entry['overhead']['median'])} ms."
    )
    yield ""


def _memory(run: Document) -> Iterator[str]:
    worst = max(run["instances"], key=lambda instance: instance["settled_mb"])
    slopes = [instance["slope_mb"] for instance in run["instances"]]
    yield (
        f"An instance holds {worst['settled_mb']:.0f} MB after {run['settled']} events of "
        f"{run['hits'][0]} to {run['hits'][1]} hits ({worst['own_mb']:.0f} MB of its own). Each"
    )
    yield (
        f"further thousand adds, by the slope up to {run['events']} events, "
        f"{min(slopes):+.1f} to {max(slopes):+.1f} MB in {len(slopes)} instances."
    )
    yield ""


def _start(run: Document) -> Iterator[str]:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["phases"].items())
    yield (
        f"A server with {run['models']} models in {run['instances']} processes is ready "
        f"{run['answered']['median']:.1f} s after its launch; of the"
    )
    yield f"start of a process, in seconds: {phases}."
