"""A deployment that other hosts reach over TLS, and the authority of its certificate."""

import pytest

from tests.certificates import Authority
from tests.kit import SMALL
from tests.tls import OUTSIDE


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="session")
def site(folder):
    return Authority(folder, "site")


@pytest.fixture(scope="session")
def pair(site):
    return site.issue("localhost", OUTSIDE, "127.0.0.1")


@pytest.fixture(scope="session")
def encrypted(kit, pair):
    """A deployment whose gRPC is encrypted and reached from outside."""
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    return kit.up("encrypted", *SMALL, "--listen", OUTSIDE, *files)
