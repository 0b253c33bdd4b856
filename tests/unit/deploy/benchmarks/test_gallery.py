"""What a stored run of the gallery's benchmark says in the documentation."""

from __future__ import annotations

import json

from scripts.benchmark_gallery import BEGIN, END, PAGE, STORED
from scripts.benchmarks.gallery_page import section


def middle(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value}


RUN = {
    "machine": {"processor": "a processor", "used_cores": [0, 1]},
    "entries": [{
        "model": "gat", "steps": 1, "requests": 9, "trip": 12.34, "queue": 0.1,
        "compute_input": 0.2, "compute_infer": 10, "compute_output": 0.3,
    }],
    "ocr": {
        "in_process_ms": middle(400), "one_client_ms": middle(440), "rate": middle(4.5),
        "slower": middle(1.1), "more_pictures": middle(1.8),
    },
    "volume": [
        {"way": "HTTP", "megabytes": 14.3, "ms": middle(100)},
        {"way": "gRPC", "megabytes": 14.3, "ms": middle(143)},
        {"way": "shared memory", "megabytes": 14.3, "ms": middle(11)},
        {"way": "shared memory, without a copy", "megabytes": 14.3, "ms": middle(5.5)},
    ],
}  # fmt: skip


def test_the_page_says_where_the_time_goes():
    said = section(RUN)
    assert "| `gat` | 12.3 | 0.10 | 0.20 | 10.00 | 0.30 | 2.34 |" in said
    assert "take 400 ms a\npicture" in said
    assert "1.10 times as long with one client" in said
    assert "reads 4.5 pictures a second, 1.80 times as many as\nthe one process" in said
    assert "| gRPC | 143.0 ms | 0.10 GB/s |" in said
    assert "Shared memory is 13 times as fast as gRPC" in said


def test_the_page_has_the_stored_run():
    shown = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert shown == section(json.loads(STORED.read_text())).strip()
