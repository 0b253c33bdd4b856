"""The table of releases beside each other."""

from scripts.benchmarks.releases import releases_page

MB = 1_000_000
RUN = {
    "format": 1,
    "clients": 8,
    "rounds": 3,
    "releases": [
        {
            "release": "24.10", "server": "2.51.0", "python": "3.11",
            "bytes": {"server": 60 * MB, "image": 290 * MB, "sif": 101 * MB},
            "starts": [1.0, 3.0, 2.0],
            "rates": {"nugraph3": [100.0, 200.0, 400.0]},
        },
        {
            "release": "26.07", "server": "2.71.0", "python": "3.12",
            "bytes": {"server": 70 * MB},
            "starts": [1.0, 1.25, 1.5],
            "rates": {"nugraph3": [101.0, 202.0, 100.0]},
        },
    ],
}  # fmt: skip
PAGE = """\
| Triton | server | Python | ready after | nugraph3, events/s | server MB | image MB | .sif MB |
|---|---|---|---|---|---|---|---|
| 24.10 | 2.51.0 | 3.11 | 2.00 s | 200 | 60 | 290 | 101 |
| 26.07 | 2.71.0 | 3.12 | 1.25 s | 101 (+1.0%) | 70 | - | - |

Medians of 3 rounds, with 8 clients; in brackets, against 24.10 in the same round.
"""


def test_each_release_is_compared_with_the_first_in_the_same_round():
    assert releases_page(RUN) == PAGE
