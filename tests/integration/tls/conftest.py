"""A deployment that other hosts reach over TLS, and the authorities of its certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority, Pair
from tests.kit import Kit
from tests.tls import OUTSIDE, SMALL


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="session")
def site(folder: Path) -> Authority:
    return Authority(folder, "site")


@pytest.fixture(scope="session")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="session")
def pair(site: Authority) -> Pair:
    return site.issue("localhost", OUTSIDE, "127.0.0.1")


@pytest.fixture(scope="session")
def encrypted(kit: Kit, pair: Pair) -> dict[str, Any]:
    """A deployment whose gRPC is encrypted and reached from outside."""
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    return kit.up("encrypted", *SMALL, "--listen", OUTSIDE, *files)
