"""Reads a bucket: two requests of S3's interface, by botocore.

Credentials, region and the file of authorities come from where botocore looks for them: variables
(AWS_ACCESS_KEY_ID, AWS_CA_BUNDLE, ...), files in the home folder, or the cluster's own service.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from numl_formats.errors import StatementError
from numl_formats.location import Location
from numl_formats.statement import LARGEST, NAME
from numl_formats.trust import LARGEST_SIGNATURE
from numl_sync.errors import BucketError, ReleaseError

CONNECT_S, READ_S = 4, 20
"""Time limits (s) for a connection, and for each part of an answer."""

_CHUNK = 1 << 16
_DIGEST = "sha256:"
_PARTIAL, _UNCHANGED, _FORBIDDEN, _BEYOND_THE_END = 206, 304, 403, 416
_MISSING_CODES = ("NoSuchKey", "404")


class Bucket:
    """A bucket at a service that speaks S3."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._made: Any = None

    def published(self, etag: str | None) -> tuple[str, bytes] | None:
        """Return ``published.json`` and its ETag; None: it is the one with ``etag``.

        It is one request. A service without ETags (JuiceFS's gateway) sends the file each time;
        its digest takes their place.

        Raises:
            BucketError: No answer, or no usable one.
            StatementError: It is too large.
        """
        condition = {"IfNoneMatch": etag} if etag and not etag.startswith(_DIGEST) else {}
        try:
            answer, content = self._whole(NAME, LARGEST, condition)
        except ClientError as error:
            if _status(error) == _UNCHANGED:
                return None
            if _code(error) in _MISSING_CODES:
                raise BucketError(
                    f"{self._location} has no {NAME}: numlkit publish writes it"
                ) from None
            raise self._refused(error) from None
        except Exception as error:
            raise self._unexpected(error) from None
        tag = str(answer.get("ETag") or f"{_DIGEST}{hashlib.sha256(content).hexdigest()}")
        return None if tag == etag else (tag, content)

    def signature(self, path: str) -> bytes | None:
        """Return a signature; None if it is not there.

        Raises:
            BucketError: No answer, or no usable one.
            StatementError: It is too large, or may not be read.
        """
        try:
            return self._whole(path, LARGEST_SIGNATURE, {})[1]
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                return None
            if self._is_denied_alone(error):
                raise StatementError(
                    "signature", f"{path} is not there, or may not be read"
                ) from None
            raise self._refused(error) from None
        except Exception as error:
            raise self._unexpected(error) from None

    def read(self, path: str, start: int, size: int) -> Iterator[bytes]:
        """Yield a file from byte ``start`` on; its whole size must be ``size`` bytes.

        Raises:
            BucketError: No answer, or one that ends early.
            ReleaseError: It is missing, may not be read, or has a different size.
        """
        try:
            answer = self._get(path, {"Range": f"bytes={start}-"} if start else {})
            partial = answer["ResponseMetadata"]["HTTPStatusCode"] == _PARTIAL
            length = answer.get("ContentLength")  # a chunked answer has none
            there = int(length) + (start if partial else 0) if length is not None else size
            if there != size:
                raise ReleaseError(f"{path} has {there} bytes, {NAME} says {size}")
            surplus = 0 if partial else start  # from a service that sends all of it
            for chunk in answer["Body"].iter_chunks(_CHUNK):
                if surplus < len(chunk):
                    yield chunk[surplus:]
                surplus = max(surplus - len(chunk), 0)
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                raise ReleaseError(f"{path} is not in the bucket") from None
            if self._is_denied_alone(error):
                raise ReleaseError(f"{path} is not in the bucket, or may not be read") from None
            if _status(error) == _BEYOND_THE_END:
                raise ReleaseError(
                    f"{path} has at most {start} bytes, {NAME} says {size}"
                ) from None
            raise self._refused(error) from None
        except Exception as error:
            raise self._unexpected(error) from None

    def _whole(self, path: str, most: int, conditions: dict[str, str]) -> tuple[Any, bytes]:
        answer = self._get(path, conditions)
        content = b""
        # To the end: only there does botocore notice a truncated answer.
        for chunk in answer["Body"].iter_chunks(_CHUNK):
            content += chunk
            if len(content) > most:
                raise StatementError("format", f"{path} has more than {most} bytes")
        return answer, content

    def _get(self, path: str, conditions: dict[str, str]) -> Any:
        if self._made is None:
            self._made = _client(self._location)
        where = {"Bucket": self._location.bucket, "Key": self._location.key(path)}
        return self._made.get_object(**where, **conditions)

    def _unexpected(self, error: Exception) -> Exception:
        """Return what to raise for any other error: a service may answer anything."""
        if isinstance(error, (BucketError, ReleaseError, StatementError)):
            return error
        if isinstance(error, (BotoCoreError, OSError)):
            return self._away(error)
        self._made = None
        if isinstance(error, RecursionError):  # of botocore, which asks it for the bucket's region
            return BucketError(f"{self._location}: it redirects to another address")
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return BucketError(f"{self._location}: an answer that S3 does not give ({words[:200]})")

    def _is_denied_alone(self, error: ClientError) -> bool:
        """Return whether a file is denied to keys that may read `NAME`.

        S3 denies what is missing to whoever may not list. Keys that were taken back read nothing.
        """
        if _status(error) != _FORBIDDEN:
            return False
        try:
            self._whole(NAME, LARGEST, {})
        except Exception:
            return False  # the error itself says what is wrong
        return True

    def _refused(self, error: ClientError) -> BucketError:
        # New keys may have replaced the old ones.
        self._made = None
        code = _code(error)
        if _status(error) == _FORBIDDEN:
            return BucketError(f"{self._location} cannot be read with these credentials: {code}")
        return BucketError(f"{self._location}: {code} (status {_status(error)})")

    def _away(self, error: Exception) -> BucketError:
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            self._made = None
            return BucketError(
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or mount a file "
                "and name it in AWS_SHARED_CREDENTIALS_FILE"
            )
        if isinstance(error, SSLError):
            reason = _tls_reason(str(error))
        elif "Invalid header value" in str(error):  # which has the key in it
            self._made = None
            reason = "the access key has an invalid character, such as a newline"
        elif isinstance(error, EndpointConnectionError):
            reason = "no connection"
        elif isinstance(error, (ConnectTimeoutError, ReadTimeoutError)):
            reason = "no answer in time"
        else:
            reason = " ".join(str(error).split()) or type(error).__name__
        return BucketError(f"{self._location}: {reason}")


def _client(location: Location) -> Any:
    session = botocore.session.get_session()
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        # What fails is tried again at the next poll.
        retries={"total_max_attempts": 1},
        # The digests in published.json are the judge; other services know no checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if location.endpoint else {},
    )
    return session.create_client(
        "s3",
        region_name=session.get_config_variable("region") or "us-east-1",
        endpoint_url=location.endpoint,
        config=config,
    )


def _tls_reason(words: str) -> str:
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle and not Path(bundle).is_file():
        return f"AWS_CA_BUNDLE={bundle}: no such file"
    found = re.search(r"certificate verify failed: ([^(\n]+)", words)
    if found is None:
        return f"TLS failed: {' '.join(words.split())}"
    hint = "; AWS_CA_BUNDLE names the file of a private authority" if "issuer" in found[1] else ""
    return f"its certificate is rejected: {found[1].strip()}{hint}"


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code if re.fullmatch(r"\w{1,80}", code) else "an unnamed error"
