"""What a stored run of a load test says in the documentation."""

from __future__ import annotations

import json

from deploy.host.paths import CHECKOUT
from scripts.benchmark_load import BEGIN, END, PAGE, PICTURE, STORED
from scripts.benchmarks.load_page import section


def test_the_documentation_tells_the_stored_run():
    page = PAGE.read_text(encoding="utf-8")
    told = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert told == section(json.loads(STORED.read_text(encoding="utf-8"))).strip()
    assert PICTURE.is_relative_to(CHECKOUT)
    assert PICTURE.is_file()
