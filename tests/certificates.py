"""Certificates for tests, made by an authority that lives as long as the test."""

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import trustme

LONG_AGO = (datetime(2020, 1, 1, tzinfo=timezone.utc), datetime(2021, 1, 1, tzinfo=timezone.utc))
FAR_AHEAD = (datetime(2090, 1, 1, tzinfo=timezone.utc), datetime(2091, 1, 1, tzinfo=timezone.utc))


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates and writes them to a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name, organization_unit_name="tests")
        self._folder = folder
        self._name = name
        self.file = folder / f"{name}.ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(
        self,
        *hosts: str,
        name: str | None = None,
        valid: tuple[datetime, datetime] | None = None,
        key_type: trustme.KeyType = trustme.KeyType.ECDSA,
    ) -> Pair:
        """Make a certificate for ``hosts``; its files are called after the first, or ``name``."""
        dates = {} if valid is None else {"not_before": valid[0], "not_after": valid[1]}
        made = self._ca.issue_cert(*hosts, key_type=key_type, **dates)
        year = "" if valid is None else f".{valid[1].year}"
        files = f"{self._name}.{name or hosts[0]}{year}"
        pair = Pair(self._folder / f"{files}.pem", self._folder / f"{files}.key")
        made.private_key_pem.write_to_path(pair.key)
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return pair
