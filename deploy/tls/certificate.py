"""What a certificate says, read with Python's own ``ssl``.

``ssl`` tells what is in a certificate only of one that it has verified. So the certificate
itself is made the one to trust, and its dates and names are left unjudged.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h, which the module has no name for.
_NO_CHECK_TIME = 0x200000
_SAID = ("commonName", "organizationName", "organizationalUnitName")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says.

    Attributes:
        subject: Whose it is: its common name, or else for people to read.
        issuer: Who signed it, for people to read.
        names: The host names and addresses it is for.
        not_before: The time from which it is valid.
        not_after: The time until which it is valid.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    @classmethod
    def of_peer(cls, connection: ssl.SSLSocket | ssl.SSLObject) -> Certificate | None:
        """Return the other side's certificate, or None if it was not verified."""
        found: Mapping[str, Any] | None = connection.getpeercert()
        if not found:
            return None
        return cls(
            subject=_values(found["subject"]).get("commonName") or _person(found["subject"]),
            issuer=_person(found["issuer"]),
            names=tuple(
                # An IPv6 address comes in full length, with a newline at its end.
                name if kind == "DNS" else str(ip_address(name.strip()))
                for kind, name in found.get("subjectAltName", ())
                if kind in ("DNS", "IP Address")
            ),
            not_before=_time(found["notBefore"]),
            not_after=_time(found["notAfter"]),
        )

    @property
    def host(self) -> str:
        """A name of a host that it is for, whether there is such a host or not."""
        # Without names, its subject's is the one that gRPC compares.
        return self.names[0].replace("*", "any", 1) if self.names else self.subject

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return self.not_after < datetime.now(UTC)

    @property
    def is_early(self) -> bool:
        """Whether its time has not come yet."""
        return self.not_before > datetime.now(UTC)


def trusting(context: ssl.SSLContext, certificates: str) -> ssl.SSLContext:
    """Have ``context`` trust ``certificates`` (PEM) alone, whatever their dates and names."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    context.load_verify_locations(cadata=certificates)
    return context


def day(time: datetime) -> str:
    """Return ``time`` as messages have it."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _values(distinguished_name: tuple[tuple[tuple[str, str], ...], ...]) -> dict[str, str]:
    return {key: value for part in distinguished_name for key, value in part}


def _person(distinguished_name: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    values = _values(distinguished_name)
    return ", ".join(values[key] for key in _SAID if key in values) or "nobody"


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
