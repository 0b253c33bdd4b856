"""A bucket through boto3: the requests that publishing needs, and what their failures mean.

boto3 finds the credentials (environment, ``~/.aws``, roles); nothing here reads them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deploy.host.errors import PublishError
from deploy.publishing.destination import Bucket

# Marks what the kit has written: only that is ever removed.
_MARK = "sha256"
_ELSEWHERE = (
    "the service redirects to another address",
    "correct the address: http or https, host and port",
)
_SETTINGS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws"
# The service's error codes that someone can act on: cause and remedy.
_REFUSALS = {
    "NoSuchBucket": ("there is no such bucket", "make it first, or correct the name"),
    "404": ("there is no such bucket", "make it first, or correct the name"),
    "AccessDenied": (
        "the service denies it",
        "use an identity that may list, read and write there, and delete for --prune",
    ),
    "InvalidAccessKeyId": ("the service does not know the access key", _SETTINGS),
    "SignatureDoesNotMatch": ("the secret key is wrong", _SETTINGS),
    "InvalidToken": ("the session token is wrong", _SETTINGS),
    "ExpiredToken": ("the credentials have expired", "get new ones, as with aws sso login"),
    "RequestTimeTooSkewed": (
        "this host's clock differs too much from the service's",
        "set the clock (timedatectl; chronyc tracking)",
    ),
    "AuthorizationHeaderMalformed": ("the region is wrong", "set AWS_DEFAULT_REGION"),
    "PermanentRedirect": ("the bucket is in another region", "set AWS_DEFAULT_REGION"),
    "SlowDown": ("the service is overloaded", "run the command again later"),
    "QuotaExceeded": ("the bucket is full", "numlkit publish --prune, or a larger quota"),
}
_REFUSALS |= {
    "403": _REFUSALS["AccessDenied"],
    "301": _REFUSALS["PermanentRedirect"],
    **dict.fromkeys(("302", "307", "308"), _ELSEWHERE),
    **dict.fromkeys(("503", "ServiceUnavailable"), _REFUSALS["SlowDown"]),
    "InvalidClientTokenId": _REFUSALS["InvalidAccessKeyId"],
    "RequestExpired": _REFUSALS["RequestTimeTooSkewed"],
}
_ABSENT = ("NoSuchKey", "404", "NotFound")
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_BLOCK = 1 << 20
_LARGEST = 64 << 20


class TakenError(PublishError):
    """Someone else has written the object in the meantime."""


@dataclass(frozen=True)
class Listed:
    """An object as the service lists it.

    Attributes:
        tag: Its ETag: with most services the MD5 of an object written at once; only a hint.
    """

    bytes: int
    tag: str


class Store:
    """The objects below a prefix; keys are relative to it.

    Every method raises a :class:`PublishError` if the service cannot be asked or refuses.
    """

    def __init__(self, place: Bucket) -> None:
        self._place = place

    @cached_property
    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        with self._errors("reach"):
            session = boto3.session.Session()
            own = self._place.endpoint is not None
            return session.client(
                "s3",
                endpoint_url=self._place.endpoint,
                # A signature names a region; a service of one's own has any.
                region_name=session.region_name or ("us-east-1" if own else None),
                config=Config(
                    connect_timeout=5,
                    read_timeout=60,
                    retries={"mode": "standard", "total_max_attempts": 3},
                    s3={"addressing_style": "path" if own else "auto"},
                    # Not every service knows the newer ones.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )

    def read(self, key: str) -> bytes | None:
        """Return what an object holds; None if it does not exist."""
        return self._read(key)[0]

    def _read(self, key: str) -> tuple[bytes | None, str | None]:
        """Return what an object holds, and its ETag if the service gives one."""
        with self._errors("read", key):
            answer = self._if_there(self.client.get_object, key)
            if answer is None:
                return None, None
            content = answer["Body"].read(_LARGEST)
            if len(content) < _LARGEST:
                answer["Body"].read(1)  # at its end botocore looks whether all has come
            return content, answer.get("ETag")

    def _if_there(self, ask: Callable[..., Any], key: str) -> Any:
        """Return the service's answer about an object; None if it does not exist."""
        from botocore.exceptions import ClientError

        try:
            return ask(**self._named(key))
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    def write(self, key: str, content: bytes) -> None:
        """Write a small object, whatever is there, and read it back."""
        with self._errors("write", key):
            mark = {_MARK: hashlib.sha256(content).hexdigest()}
            self.client.put_object(**self._named(key), Body=content, Metadata=mark)
        if self.read(key) != content:
            raise self._differs(key)

    def replace(self, key: str, content: bytes, before: bytes | None) -> None:
        """Write a small object if it is still ``before``; None: if it does not exist.

        Raises:
            TakenError: If it is not.
        """
        there, tag = self._read(key)
        if there != before:
            raise TakenError(f"{self.name(key)} was changed by someone else")
        # Checked again by the service, where it can: it alone sees concurrent writes.
        condition = {"IfNoneMatch": "*"}
        if there is not None:
            condition = {"IfMatch": tag} if tag is not None else {}
        with self._errors("write", key):
            self._put(condition, **self._named(key), Body=content)

    def upload(self, key: str, content: bytes, sha256: str) -> None:
        """Write an object that is not there yet, and read it back.

        Raises:
            TakenError: If the object is there.
            PublishError: If what the service then holds is not the file.
        """
        if self._head(key) is not None:
            raise TakenError(f"{self.name(key)} was written by someone else")
        with self._errors("write", key):
            self._put(
                {"IfNoneMatch": "*"},
                **self._named(key),
                Body=content,
                Metadata={_MARK: sha256},
                # So that the service refuses content that changed in transit.
                ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
            )
        # Not every service looks at the checksum: what counts is what it gives back.
        if self.sha256(key) != sha256:
            raise self._differs(key)

    def _put(self, condition: Mapping[str, str], **named: Any) -> None:
        """Write an object conditionally; older services do not support conditions."""
        from botocore.exceptions import ClientError

        try:
            self.client.put_object(**named, **condition)
        except ClientError as error:
            if _code(error) != "NotImplemented":
                raise
            self.client.put_object(**named)

    def sha256(self, key: str) -> str | None:
        """Return the digest of what an object holds; None if it does not exist."""
        total = hashlib.sha256()
        with self._errors("read", key):
            answer = self._if_there(self.client.get_object, key)
            if answer is None:
                return None
            for block in answer["Body"].iter_chunks(_BLOCK):
                total.update(block)
        return total.hexdigest()

    def is_own(self, key: str) -> bool:
        """Return whether the kit has written an object; False where services keep no marks."""
        return _MARK in (self._head(key) or {})

    def _differs(self, key: str) -> PublishError:
        return PublishError(
            f"{self.name(key)} does not hold what was sent to it: someone else has written it, or "
            "the service has damaged it",
            "run the command again; if it fails again, see the service's log",
        )

    def _head(self, key: str) -> Mapping[str, str] | None:
        """Return an object's metadata; None if it does not exist."""
        with self._errors("read", key):
            answer = self._if_there(self.client.head_object, key)
            return None if answer is None else dict(answer.get("Metadata", {}))

    def objects(self) -> dict[str, Listed]:
        found: dict[str, Listed] = {}
        prefix = self._place.key("")
        with self._errors("list"):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._place.bucket, Prefix=prefix):
                for entry in page.get("Contents", ()):
                    if entry["Key"] == prefix:  # what a console makes for an empty folder
                        continue
                    listed = Listed(int(entry["Size"]), str(entry.get("ETag", "")).strip('"'))
                    found[entry["Key"].removeprefix(prefix)] = listed
        return found

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects one by one: not every service supports batch deletion."""
        for key in keys:
            with self._errors("remove", key):
                self.client.delete_object(**self._named(key))

    def name(self, key: str) -> str:
        """Return an object's address, for a message."""
        return f"{self._place}/{key}"

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._place.key(key)}

    @contextmanager
    def _errors(self, doing: str, key: str | None = None) -> Iterator[None]:
        """Translate boto3's exceptions, whose messages may be long, and contain keys."""
        from boto3.exceptions import Boto3Error
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        what = f"cannot {doing} {self.name(key) if key is not None else self._place}"
        try:
            yield
        except PublishError:  # the client, which is made when it is used, cannot be made
            raise
        except exceptions.ClientError as error:
            if _code(error) in _TAKEN:
                raise TakenError(f"{what}: someone else has written it") from None
            code = _code(error)
            unknown = f"the service answers {code or 'an error'}", "see the service's log"
            cause, remedy = _REFUSALS.get(code, unknown)
            raise PublishError(f"{what}: {cause}", remedy) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
            raise PublishError(f"{what}: no credentials", _SETTINGS) from None
        except exceptions.ProfileNotFound:
            cause = f"{what}: ~/.aws has no such profile"
            raise PublishError(cause, "correct AWS_PROFILE") from None
        except exceptions.SSLError as error:
            endpoint = self._place.endpoint or "AWS"
            unread = re.search(r"\[(?:Errno|X509)[^]]*\] ([^(\n]+)", str(error))
            if unread is not None:
                raise PublishError(
                    f"{what}: the authorities that AWS_CA_BUNDLE or ca_bundle in ~/.aws/config "
                    f"names cannot be read: {unread[1].strip()}",
                    "correct it: a file of certificates (PEM)",
                ) from None
            why = re.search(r"certificate verify failed: ([^(\n]+)", str(error))
            if why is None:
                cause = f"{what}: no TLS with {endpoint}"
                raise PublishError(cause, "s3://http://... if it has none") from None
            raise PublishError(
                f"{what}: the certificate of {endpoint} is not trusted: {why[1].strip(' .')}",
                "AWS_CA_BUNDLE=FILE with the authority that signed it (PEM)",
            ) from None
        except (exceptions.IncompleteReadError, exceptions.ResponseStreamingError):
            raise PublishError(f"{what}: the connection was cut", "run the command again") from None
        # urllib3's own: of an answer that is an error, and breaks off.
        except (exceptions.ConnectionError, exceptions.HTTPClientError, HTTPError) as error:
            if "Invalid header value" in str(error):
                cause = f"{what}: the access key has an invalid character, such as a newline"
                raise PublishError(cause, _SETTINGS) from None
            raise PublishError(
                f"{what}: {self._place.endpoint or 'AWS'} does not answer",
                "check host, port and http or https, the network, and HTTPS_PROXY",
            ) from None
        except (exceptions.BotoCoreError, Boto3Error) as error:
            # Settings of boto3 that are wrong: it says which.
            said = str(error).splitlines()[0]
            raise PublishError(f"{what}: {said}", "check ~/.aws/config and AWS_*") from None
        except RecursionError:
            # botocore asks whoever redirects for the bucket's region, and is redirected again.
            raise PublishError(f"{what}: {_ELSEWHERE[0]}", _ELSEWHERE[1]) from None
        except OSError:  # a file that cannot be read, such as that of the credentials
            raise
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise PublishError(
                f"{what}: an answer that S3 does not give, or a setting that is none: {said[:200]}",
                "check the address, ~/.aws/config and AWS_*",
            ) from None


def _code(error: Any) -> str:
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code if re.fullmatch(r"\w{1,80}", code) else ""
