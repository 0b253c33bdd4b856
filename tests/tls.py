"""What tests ask of servers that speak gRPC over TLS."""

from pathlib import Path
from typing import Any

from tests.kit import Kit

# A second loopback address stands for the one by which other hosts reach a server.
OUTSIDE = "127.0.0.2"


def url(answer: dict[str, Any], host: str = OUTSIDE) -> str:
    return f"grpcs://{host}:{answer['ports']['grpc']}"


def smoke(kit: Kit, url: str, *flags: str | Path, models: str = "nugraph3") -> dict[str, Any]:
    return kit.json("smoke", "--url", url, "--models", models, *map(str, flags))


def told(answer: dict[str, Any]) -> tuple[str, str]:
    """Return cause and remedy of a check that failed."""
    assert answer["status"] == 1
    assert not answer["ok"]
    assert answer["stderr"] == ""
    return answer["error"], answer["remedy"]
