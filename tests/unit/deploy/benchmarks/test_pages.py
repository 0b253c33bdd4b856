"""The pages of the documentation tell the stored runs."""

import json

import pytest

from scripts import benchmark_bulk, benchmark_gallery, benchmark_load
from scripts.benchmarks import gallery_page, load_page


@pytest.mark.parametrize(
    ("script", "section"),
    [
        (benchmark_bulk, benchmark_bulk.section),
        (benchmark_gallery, gallery_page.section),
        (benchmark_load, load_page.section),
    ],
    ids=["bulk", "gallery", "load"],
)
def test_the_page_tells_the_stored_run(script, section):
    page = script.PAGE.read_text(encoding="utf-8")
    told = page.partition(script.BEGIN)[2].partition(script.END)[0]
    assert told.strip() == section(json.loads(script.STORED.read_text(encoding="utf-8"))).strip()
