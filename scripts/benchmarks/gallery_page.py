"""The gallery's figures, as its page shows them."""

from __future__ import annotations

from scripts.benchmarks.document import Document
from scripts.benchmarks.gallery import CLIENTS, PARTS


def section(run: Document) -> str:
    """Return a run as Markdown."""
    machine = run["machine"]
    rows = "\n".join(map(_row, run["entries"]))
    ways = {each["way"]: each for each in run["volume"]}
    size = ways["gRPC"]["megabytes"]
    transports = "\n".join(
        f"| {way} | {each['ms']['median']:.1f} ms | {size / each['ms']['median']:.2f} GB/s |"
        for way, each in ways.items()
    )
    faster, at_best = (
        ways["gRPC"]["ms"]["median"] / ways[way]["ms"]["median"]
        for way in ("shared memory", "shared memory, without a copy")
    )
    ocr = {name: each["median"] for name, each in run["ocr"].items()}
    return f"""\
One client sends each model the request of its reference output over gRPC
({machine["processor"]}, {len(machine["used_cores"])} cores). The columns from queue to output are
Triton's own statistics; overhead is everything except compute: server, transport and client.
Means in milliseconds:

| model | round trip | queue | input | compute | output | overhead |
|---|---|---|---|---|---|---|
{rows}

The times of `ocr` are sums over its steps. The time that a model waits for others that it calls by
BLS counts as compute. `electron_lifetime` has the times of one event of a sequence, `hit_finder`
those until its last response, with a connection for each stream. `sentence_cache` answers from the
cache.

The same three steps of `ocr` in one process, without Triton, take {ocr["in_process_ms"]:.0f} ms a
picture; with one client the ensemble takes {ocr["slower"]:.2f} times as long. With {CLIENTS}
clients it reads {ocr["rate"]:.1f} pictures a second, {ocr["more_pictures"]:.2f} times as many as
the one process.

A volume of {size:.1f} MB to `brain`, and its mask of {size / 4:.1f} MB back, without computing:

| by | time | rate |
|---|---|---|
{transports}

Shared memory is {faster:.0f} times as fast as gRPC, and {at_best:.0f} times if the client makes its
volume there instead of copying it. It needs `numlkit up --shared-memory`, and a client on the same
host.
"""


def _row(entry: Document) -> str:
    parts = " | ".join(f"{entry[part]:.2f}" for part in PARTS)
    overhead = entry["trip"] - entry["compute_infer"]
    return f"| `{entry['model']}` | {entry['trip']:.1f} | {parts} | {overhead:.2f} |"
