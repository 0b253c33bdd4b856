"""A large request that means ill is answered or refused, in bounded time and memory."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hostile import EVENTS

SCRIPT = Path(__file__).with_name("hostile.py")

MIB_OF_A_NETWORK = 512
"""What the library lets the numbers of one event take."""

MIB_OF_A_GRAPH = 192
"""What it has beside it: the event's edges, while they are found and sorted."""


@cache
def taken(name: str, width: int) -> Any:
    """Return how a process took an event."""
    command = [sys.executable, str(SCRIPT), name, str(width)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", EVENTS)
def test_no_request_takes_much_longer_or_more_memory_than_scattered_hits(name):
    facts, scattered = taken(name, 128), taken("scattered", 128)
    assert facts["seconds"] < 10 * scattered["seconds"]
    assert facts["mib"] < MIB_OF_A_NETWORK + MIB_OF_A_GRAPH
    if name.startswith("one id"):
        assert "ids must be unique in a plane" in facts["refused"]
        assert facts["seconds"] < scattered["seconds"] / 10
    elif name.endswith("too many"):
        assert "at most" in facts["refused"]
        assert facts["seconds"] < scattered["seconds"] / 10
    else:
        assert facts["refused"] is None


@pytest.mark.parametrize("width", [128, 1024])
def test_memory_is_bounded_for_a_network_of_any_width(width):
    facts = taken("scattered", width)
    assert facts["mib"] < MIB_OF_A_NETWORK + MIB_OF_A_GRAPH
    assert facts["mib_after"] < 192
    if width > 128:
        assert facts["refused"] == "the event is too large: it would take more than 512 MiB"
