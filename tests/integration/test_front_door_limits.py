"""What hostile or careless clients do to a front door, and what others notice of it.

``NUMLKIT_CROWD=whole`` plays 10,000 idle connections and 1,000 of each other kind: two minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.asking import Clients, backends, trusting
from tests.certificates import Authority
from tests.chart import Site
from tests.crowd import Crowd, half_sent, idle, slow_readers
from tests.doors import Door, envoy, haproxy

REQUESTS = 1000
EVENT = bytes(100_000)
WHOLE = os.environ.get("NUMLKIT_CROWD") == "whole"
CROWDS = {
    "idle": idle(10_000 if WHOLE else 1500),
    "without TLS": idle(10_000 if WHOLE else 1500, encrypted=False),
    "half-sent": half_sent(1000 if WHOLE else 300, 1_000_000),
    "slow": slow_readers(1000 if WHOLE else 300),
}
SMALL = {"resources": {"limits": {"memory": "1Gi" if WHOLE else "384Mi"}}}


@pytest.fixture(scope="module", params=["haproxy", "envoy"])
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    authority = Authority(folder, "site")
    with ExitStack() as stack:
        servers = stack.enter_context(backends(2, 0.005))
        if request.param == "haproxy":
            yield stack.enter_context(haproxy(folder, servers, authority))
        else:
            site = Site(("cpu",), {"frontDoor": SMALL})
            yield stack.enter_context(envoy(folder, servers, authority, site))


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_a_crowd_costs_others_no_request_and_the_door_no_memory_beyond_its_limit(
    door: Door, crowd: Crowd
) -> None:
    clients, most = Clients(door.port, trusting(door.authority)), [0]

    async def play() -> None:
        async with crowd.at(door.port, door.authority.file) as entered:
            assert entered > 0.9 * crowd.count
            asked = asyncio.create_task(asyncio.to_thread(clients.ask, REQUESTS, EVENT))
            while not asked.done():
                most.append(door.memory)
                await asyncio.sleep(0.05)
            await asked

    asyncio.run(play())
    print(f"memory at most {max(most) >> 20} MiB")
    assert (clients.failed, len(clients.took)) == ([], REQUESTS)
    assert max(most) < door.limit
