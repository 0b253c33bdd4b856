"""What a stored run of a load test says in the documentation."""

from __future__ import annotations

import json
from typing import Any

from deploy.host.paths import CHECKOUT
from scripts.benchmark_load import BEGIN, END, PAGE, STORED
from scripts.benchmarks.load import load_table, section


def tenant(offered: float, good: float, p99_ms: float | None = 900.0) -> dict[str, Any]:
    return {
        "tenant": "clients", "offered": offered, "goodput": good, "arrived": int(offered * 10),
        "p50_ms": 20.0 if p99_ms else None, "p99_ms": p99_ms, "refused": 1, "late": 2,
    }  # fmt: skip


def server(shares: tuple[float, ...], most_mb: int, light: float) -> dict[str, Any]:
    told = {"capacity": 40.0, "deadline_s": 2.0, "retries": 2}
    rounds = [
        {"tenants": [tenant(40.0 * rate, 40.0 * share)]}
        for rate, share in zip((0.5, 1, 2, 5, 10), shares, strict=True)
    ]
    beside = {"seconds": 10.0, "rounds": [{"tenants": [tenant(10.0, light, light or None)]}]}
    return {
        "overload": {**told, "rounds": rounds}, "beside": beside,
        "first_mb": 90, "most_mb": most_mb, "replaced": 0,
    }  # fmt: skip


RUN = {
    "machine": {"load_before": [0.3, 0.2, 0.1]},
    "overhead": {"hits": 200, "requests": 800, "p50_ms": {"unbounded": 4.25, "bounded": 4.26}},
    "unbounded": server((0.5, 0.9, 0.4, 0.2, 0.1), 1500, 0.0),
    "bounded": server((0.5, 0.95, 1.0, 0.98, 0.97), 800, 9.9),
}
SECTION = """\
Clients have a deadline of 2 s and try 3 times, without a pause. An answer counts
if it is right and comes within 2 s of the event's arrival. One instance on one core,
events of 1,300 hits; unbounded is `waiting = 1000000`,
`wait_s = 3600`, `hits = 100000`. Goodput is in multiples of what the server can
answer (40 events/s; load average 0.3 before the run).

| offered | 0.5x | 1x | 2x | 5x | 10x |
|---|---|---|---|---|---|
| unbounded | 0.50 | 0.90 | 0.40 | 0.20 | 0.10 |
| bounded | 0.50 | 0.95 | 1.00 | 0.98 | 0.97 |

![Goodput against offered load](../scripts/data/speed/load.png)

Beside 200 requests of 100,000 hits in 10 s, a client that sends 10 events of 200 hits a second:

| | answered in time | p99 | most memory | processes replaced |
|---|---|---|---|---|
| unbounded | 0% | - | 1,500 MB (90 idle) | 0 |
| bounded | 99% | 10 ms | 800 MB (90 idle) | 0 |

Alone, a request of 200 hits takes 4.26 ms with bounds and 4.25 ms without (medians of 800).
"""


def test_a_run_is_told_as_text_for_the_documentation() -> None:
    assert section(RUN) == SECTION


def test_a_run_is_told_as_a_table() -> None:
    table = load_table(RUN)
    assert table.rows[1] == (
        "unbounded", "1x", "36.0/s", "100%", "20", "900", "1", "2", "400",
    )  # fmt: skip
    assert len(table.rows) == 10


def test_the_documentation_tells_the_stored_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert told == section(json.loads(STORED.read_text(encoding="utf-8"))).strip()
    assert (CHECKOUT / "scripts/data/speed/load.png").is_file()
