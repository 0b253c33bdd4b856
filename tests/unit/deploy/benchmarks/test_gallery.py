"""What a stored run of the gallery's benchmark says in the documentation."""

from __future__ import annotations

import json

from scripts.benchmark_gallery import BEGIN, END, PAGE, STORED
from scripts.benchmarks.gallery_page import section


def test_the_page_has_the_stored_run():
    shown = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert shown == section(json.loads(STORED.read_text())).strip()
