"""Where a bucket is, as Triton spells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from numl_sync.errors import UsageError

_HOST = r"(?:[0-9A-Za-z.-]+|\[[0-9A-Fa-f:]+\])"
_SERVICE = re.compile(rf"(?:(?P<scheme>https?)://)?(?P<host>{_HOST}(?::\d+)?)/?")
_URL = re.compile(
    rf"s3://(?:(?P<scheme>https?)://(?P<named>{_HOST}(?::\d+)?)/|(?P<host>{_HOST}:\d+)/)?"
    r"(?P<bucket>[0-9a-z][0-9a-z.-]+)(?P<prefix>(?:/[0-9A-Za-z._-]+)*)/?"
)


@dataclass(frozen=True, slots=True)
class Location:
    """A folder of a bucket.

    Attributes:
        endpoint: URL of the service; None: Amazon's, or what AWS_ENDPOINT_URL says.
        prefix: Without slashes at its ends; empty: the whole bucket.
    """

    bucket: str
    prefix: str
    endpoint: str | None

    def key(self, path: str) -> str:
        """Return the key of ``path`` in it."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        host = f"{self.endpoint}/" if self.endpoint else ""
        return f"s3://{host}{self.bucket}/{self.prefix}".rstrip("/")


def read_location(url: str, variables: Mapping[str, str]) -> Location:
    """Read ``s3://[[http://|https://]HOST:PORT/]BUCKET[/PREFIX]``.

    A host without a scheme is reached over HTTP, as Triton does; without a host, the variable
    AWS_ENDPOINT names one.

    Raises:
        UsageError: It is none.
    """
    found = _URL.fullmatch(url)
    if found is None:
        if "@" in url:  # a password may be before it, which would end in a log
            url = "the bucket's address"
        raise UsageError(f"{url}: not s3://[http[s]://HOST:PORT/]BUCKET[/PREFIX]")
    host, scheme = found["named"] or found["host"], found["scheme"]
    if host is None and (named := variables.get("AWS_ENDPOINT")):
        service = _SERVICE.fullmatch(named)
        if service is None:
            raise UsageError("AWS_ENDPOINT is not [http[s]://]HOST:PORT")
        host, scheme = service["host"], service["scheme"]
    endpoint = f"{scheme or 'http'}://{host}" if host else None
    return Location(found["bucket"], found["prefix"].strip("/"), endpoint)
