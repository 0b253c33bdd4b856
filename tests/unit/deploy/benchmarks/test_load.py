"""What a stored run of a load test says in the documentation."""

from __future__ import annotations

import json
from typing import Any

from deploy.host.paths import CHECKOUT
from scripts.benchmark_load import BEGIN, END, PAGE, PICTURE, STORED
from scripts.benchmarks.load_page import section


def tenant(offered: float, good: float, p99_ms: float | None = 900.0) -> dict[str, Any]:
    arrived = int(offered * 10)
    return {"goodput": good, "in_time": good * 10, "arrived": arrived, "p99_ms": p99_ms}


def rounds(*shares: float) -> dict[str, Any]:
    offered = zip((0.5, 1, 2, 5, 10), shares, strict=True)
    return {"rounds": [{"tenants": [tenant(40 * x, 40 * share)]} for x, share in offered]}


RUN = {
    "machine": {"load_before": [0.3, 0.2, 0.1]},
    "capacity": 40.0,
    "overload": {
        "unbounded": rounds(0.5, 0.9, 0.4, 0.2, 0.1),
        "bounded": rounds(0.5, 0.95, 1.0, 0.98, 0.97),
        "bounded, behind the front door": rounds(0.5, 0.94, 0.99, 0.99, 0.99),
    },
    "beside": {
        "100000": {
            "unbounded": [tenant(10, 0, None), tenant(20, 0, None)],
            "bounded": [tenant(10, 9.9, 10), tenant(20, 0, None)],
        },
        "25000": {
            "unbounded": [tenant(10, 1, 1900), tenant(10, 1)],
            "bounded": [tenant(10, 8, 520), tenant(10, 2)],
        },
    },
    "closed": [{
        "hits": 1300,
        "clients": 8,
        "per_s": {"unbounded": 44.0, "bounded": 40.2, "unbounded, three processes": 40.0},
        "ratios": {"unbounded": 0.91, "unbounded, three processes": 1.005},
    }],
    "first_mb": {"unbounded": 90, "bounded": 150},
    "most_mb": {"unbounded": 1500, "bounded": 800},
    "stubs_kept": {"unbounded": True, "bounded": True},
}  # fmt: skip
SECTION = """\
Clients have a deadline of 2 s and try 3 times, without a pause.
An answer counts if it is right, comes within 2 s of the event's arrival, and
while events still arrive.
Events have 1,300 hits. Each server has one core; clients and door have another.
Goodput is in multiples of what a server can answer: 40 events/s. (Load
average before the run: 0.3. Medians of three rounds, in turn.)

| offered | 0.5x | 1x | 2x | 5x | 10x |
|---|---|---|---|---|---|
| unbounded | 0.50 | 0.90 | 0.40 | 0.20 | 0.10 |
| bounded | 0.50 | 0.95 | 1.00 | 0.98 | 0.97 |
| bounded, behind the front door | 0.50 | 0.94 | 0.99 | 0.99 | 0.99 |

![Goodput against offered load](../scripts/data/speed/load.png)

A client that sends 10 events of 200 hits a second, for 10 s:

| beside | | answered in time | p99 | of the large ones |
|---|---|---|---|---|
| 200 events of 100,000 hits | unbounded | 0% | - | 0% |
| 200 events of 100,000 hits | bounded | 99% | 10 ms | 0% |
| 100 events of 25,000 hits | unbounded | 10% | 1900 ms | 10% |
| 100 events of 25,000 hits | bounded | 80% | 520 ms | 20% |

Most memory during all of this: 1,500 MB unbounded (90 MB idle), 800 MB bounded (150 MB idle).
No process died.

Rates for clients that send the next event only after an answer. In brackets: the rate
of the bounded server divided by this one, both measured within the same half second.

| hits | clients | unbounded | bounded | unbounded, three processes |
|---|---|---|---|---|
| 1,300 | 8 | 44 events/s (0.91) | 40 events/s | 40 events/s (1.00) |
"""


def test_a_run_is_told_as_text_for_the_documentation():
    assert section(RUN) == SECTION


def test_the_documentation_tells_the_stored_run():
    page = PAGE.read_text(encoding="utf-8")
    told = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert told == section(json.loads(STORED.read_text(encoding="utf-8"))).strip()
    assert PICTURE.is_relative_to(CHECKOUT)
    assert PICTURE.is_file()
