"""Which of the rounds of a load test is shown."""

import asyncio

from deploy.client.load.open_loop import Counts, Round
from scripts.benchmarks import load


def test_of_three_rounds_the_one_with_the_median_goodput_is_shown(monkeypatch):
    # In time at all, and of these while events still arrived.
    found = [(count, load.RATES) for count in ((30, 10), (10, 20), (20, 30))]
    rounds = iter(
        Round(1.0, {"clients": Counts(arrived=30, meanwhile=good, latencies=[0.1] * in_time)}, 0.0)
        for (in_time, good), rates in found
        for _ in rates
    )

    async def offered(*_: object) -> Round:
        return next(rounds)

    monkeypatch.setattr(load, "_offer", offered)
    told = asyncio.run(load._overload({"bounded": object()}, [], 10.0, 1.0, lambda _: None))
    goodput = [each["tenants"][0]["goodput"] for each in told["bounded"]["rounds"]]
    assert goodput == [20.0] * len(load.RATES)
