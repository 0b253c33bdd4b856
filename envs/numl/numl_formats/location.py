"""Where a bucket is, as typed: ``s3://[http[s]://HOST[:PORT]/]BUCKET[/PREFIX]``.

Triton's spelling, with one difference: a host without a scheme is reached over TLS. Plain HTTP is
for addresses that say so.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from numl_formats.errors import FormatError

# Triton's own expression for an S3 address knows no other characters.
_KEY = re.compile(r"[0-9a-zA-Z._-]+(/[0-9a-zA-Z._-]+)*")
_BUCKET = re.compile(r"[0-9a-z][0-9a-z.-]{1,61}[0-9a-z]")
_HOST = re.compile(r"([0-9A-Za-z.-]+|\[[0-9A-Fa-f:]+\])(:\d+)?")


@dataclass(frozen=True, slots=True)
class Location:
    """A folder of a bucket.

    Attributes:
        endpoint: URL of the service; None: Amazon's, or the one in AWS_ENDPOINT_URL.
        prefix: The prefix of all keys, without slashes around it; empty: the whole bucket.
    """

    endpoint: str | None
    bucket: str
    prefix: str

    def key(self, path: str) -> str:
        """Return the key of ``path`` in it."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        """Return it as Triton's ``--model-repository`` spells it."""
        parts = (self.endpoint, self.bucket, self.prefix)
        return "s3://" + "/".join(part for part in parts if part)


def read_location(text: str) -> Location:
    """Read the address of a bucket.

    Raises:
        FormatError: It is none. A password is not repeated.
    """
    if "@" in text:
        raise FormatError("the address of the bucket has a user or password in it")
    if not text.startswith("s3://"):
        raise FormatError(f"{text}: not the address of a bucket")
    rest, endpoint = text.removeprefix("s3://"), None
    with_scheme = re.match(r"(https?://[^/]*)/?", rest)
    with_port = re.match(r"([^/]+:\d+)/", rest)
    if host := with_scheme or with_port:
        try:
            endpoint = read_endpoint(host[1])
        except FormatError:
            raise FormatError(f"{text}: its endpoint is not a URL") from None
        rest = rest[host.end() :]
    bucket, _, prefix = rest.partition("/")
    prefix = prefix[:-1] if prefix.endswith("/") else prefix
    if not _BUCKET.fullmatch(bucket):
        raise FormatError(f"{text}: {bucket!r} is not the name of a bucket")
    if prefix and (not _KEY.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
        raise FormatError(f"{text}: Triton cannot read such a prefix")
    return Location(endpoint, bucket, prefix)


def read_endpoint(text: str) -> str:
    """Return the URL of a service, given ``[http[s]://]HOST[:PORT]``.

    Raises:
        FormatError: It is none; what was given is not repeated.
    """
    url = text if re.match(r"https?://", text) else f"https://{text}"
    with suppress(ValueError):
        parts = urlsplit(url)
        plain = parts.port != 0 and parts.path in ("", "/") and not parts.query + parts.fragment
        if plain and _HOST.fullmatch(parts.netloc):
            return f"{parts.scheme}://{parts.netloc}"
    raise FormatError("not [http[s]://]HOST[:PORT]")
