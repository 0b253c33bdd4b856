"""The page of bulk runs shows the stored run."""

import json

from scripts.benchmark_bulk import BEGIN, END, PAGE, STORED, section


def test_the_page_shows_the_stored_run():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == f"\n\n{section(json.loads(STORED.read_text(encoding='utf-8')))}\n"
