"""The sections on speed in the README and docs/benchmarks.md, generated from stored runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from scripts.benchmarks.builds import APPTAINER, FLOOR, OURS
from scripts.benchmarks.document import GRADIENTS_OFF, SERVING, Document, find
from scripts.benchmarks.tables import ms, times

BEGIN = "<!-- speed: made by scripts/benchmark.py readme from scripts/data/speed -->"
END = "<!-- /speed -->"
PLOT = "../scripts/data/speed/speed.png"
SETS = ("200 hits", "1300 hits")
RUNS = ("speed", "memory", "start", "heal", "build")
ROUTES = {
    OURS: "`numlkit build`",
    APPTAINER: "`apptainer build` with its defaults",
    FLOOR: "the floor: `docker export` to a file",
}


def stored_runs(folder: Path) -> dict[str, Document]:
    """Return the runs that are stored in a folder, by the names of `section`'s arguments."""
    paths = {name: folder / f"{name}.json" for name in RUNS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def summary(speed: Document) -> str:
    """Return the README's section."""
    lines = [
        f"The same events go to NuGraph's own code ({_nugraph(speed)}) and to this kit, in the "
        "same Triton",
        f"on the same {len(speed['machine']['used_cores'])} cores. Values are medians over gRPC. "
        "The last column compares with NuGraph as it is served today;",
        "in brackets, the middle 80% of rounds. [All figures](docs/benchmarks.md) come with a way "
        "to measure on your machine.",
        "",
        *_served_table(speed),
    ]
    return "\n".join(lines) + "\n"


def section(
    speed: Document,
    memory: Document,
    start: Document,
    heal: Document | None = None,
    build: Document | None = None,
) -> str:
    """Return the section of docs/benchmarks.md; a run that is None is left out."""
    machine = speed["machine"]
    lines = [
        "## Served",
        "",
        "The same events go to this kit and to NuGraph's own code (pynuml, PyTorch Geometric, "
        f"{_nugraph(speed)}), in turn,",
        f"in the same Triton, with the clients on the same {len(machine['used_cores'])} cores "
        f"({machine['processor']}, torch {machine['torch']}; load",
        f"average {machine['load_before'][0]:.1f} before the run). Values are medians over gRPC. "
        '"As served today" is one instance with',
        'torch\'s default threads; "at its best" is an instance per core, without gradients. The '
        "last column compares",
        "with today; in brackets, the middle 80% of rounds.",
        "",
        *_served_table(speed),
        "",
        "The events are typical: of twice as many simulated, the half nearest to the median "
        "number of spacepoints. About",
        "one simulated event in six has several times as many as others of its size, and takes "
        "longer.",
        "",
        f"![Latency against hits, throughput against clients]({PLOT})",
        "",
        *_shares(speed),
        "## In one process",
        "",
        "On one core, compared with NuGraph's own code without gradients:",
        "",
        "| | events | graph ms | network ms | event ms | NuGraph's | faster |",
        "|---|---|---|---|---|---|---|",
        *_alone(speed),
        "",
        "## Memory and start-up",
        "",
        *_memory(memory),
        *_start(start),
        *([] if heal is None else _heal(heal)),
        *([] if build is None else _build(build)),
    ]
    return "\n".join(lines) + "\n"


def _nugraph(run: Document) -> str:
    """Return the nugraph that the models come from, and were compared with."""
    return "nugraph " + " and ".join(sorted({name.split()[1] for name in run["models"].values()}))


def _served_table(run: Document) -> list[str]:
    return [
        "| | events | NuGraph as served today | at its best | this kit | faster |",
        "|---|---|---|---|---|---|",
        *_served(run),
    ]


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
    rest = 1 - graph - network
    yield (
        f"Of a round trip of {ms(mean)} ms on average ({entry['model']}, {SETS[-1]}; p99 "
        f"{ms(entry['latency']['p99'])} ms) the graph takes {graph:.0%}, the network "
        f"{network:.0%},"
    )
    yield f"and Triton, transport and client {rest:.0%}: {ms(rest * mean)} ms."
    yield ""


def _memory(run: Document) -> Iterator[str]:
    worst = max(run["instances"], key=lambda instance: instance["settled_mb"])
    slopes = [instance["slope_mb"] for instance in run["instances"]]
    yield (
        f"An instance holds {worst['settled_mb']:.0f} MB after {run['settled']} events of "
        f"{run['hits'][0]} to {run['hits'][1]} hits, {worst['own_mb']:.0f} MB of it not shared."
    )
    yield (
        f"Each further thousand events, up to {run['events']}, adds "
        f"{min(slopes):+.1f} to {max(slopes):+.1f} MB ({len(slopes)} instances)."
    )
    yield ""


def _start(run: Document) -> Iterator[str]:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["phases"].items())
    yield (
        f"A server with {run['models']} models in {run['instances']} processes is ready "
        f"{run['answered']['median']:.1f} s after its launch. A process"
    )
    yield f"takes, in seconds: {phases}."


def _heal(run: Document) -> Iterator[str]:
    yield ""
    yield (
        f"A model process that is killed is replaced, and all instances answer, after "
        f"{run['median']:.1f} s"
    )
    yield f"(median of {run['heals']} times; the longest {run['longest']:.1f} s)."


def _build(run: Document) -> Iterator[str]:
    series = {name: run["build"][name] for name in ROUTES}
    seconds = {name: median(each["seconds"]) for name, each in series.items()}
    yield from ("", "## Building", "")
    yield (f"`scripts/benchmark_build.py` turns the image `{run['image']}` into a `.sif`, in turn")
    yield (
        f"with Apptainer's own build and with Docker's export to a file ({run['cores']} cores; "
        f"load average {run['load_after'][0]:.1f} after the run):"
    )
    yield from ("", "| | seconds, median | from, to | size | faster than Apptainer |")
    yield "|---|---|---|---|---|"
    for name, what in ROUTES.items():
        each = series[name]
        spread = f"{min(each['seconds']):.1f}, {max(each['seconds']):.1f}"
        faster = f"{seconds[APPTAINER] / seconds[name]:.0f}x" if name != FLOOR else ""
        yield (
            f"| {what} | {seconds[name]:.1f} | {spread} | {each['bytes'] / 1e6:.0f} MB | {faster} |"
        )
    starts = {name: f"{median(each['seconds']):.1f} s" for name, each in run["start"].items()}
    if starts:
        told = ", ".join(f"{after} {name}" for name, after in starts.items())
        yield from (
            "",
            "From a server's start until all models have given their reference output:",
        )
        yield f"{told}."
