"""A registry of images, asked through its own interface (OCI distribution specification).

Credentials are those of ``docker login``, read by Docker's SDK; nothing is written.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import docker.auth
import docker.errors
import requests

from deploy.artefacts.reference import Reference, parse_reference
from deploy.host.errors import DamagedError, DeniedError, PublishError

DOCUMENT_BYTES = 1 << 23
"""The most that a manifest, an image's configuration or another document may have."""

_TIMEOUT_S = 30.0
_PATIENCE_S = 5.0  # for what can be done without; a firewall may drop packets to many addresses
_CHUNK = 1 << 20
_DIGEST = "Docker-Content-Digest"
_DOES = {"GET": "read", "PUT": "write to"}
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_UNTRUSTED = re.compile(r"certificate verify failed: ([^(\n]+)")
_UNKNOWN = ("issuer", "self-signed", "self signed")
# requests knows the authorities that come with it, not those that the host trusts.
_AUTHORITY = (
    "REQUESTS_CA_BUNDLE=FILE with the authority that signed it (PEM), such as "
    "/etc/ssl/certs/ca-certificates.crt where this host trusts it"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Manifest:
    """A manifest in a registry, and the digest that the registry gives it."""

    digest: str
    content: dict[str, Any]


class _Session(requests.Session):
    """Sends what it is told to: requests would add the passwords of ``~/.netrc``."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = _as_it_is

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        headers, to = prepared_request.headers, prepared_request.url or ""
        if self.should_strip_auth(response.request.url or "", to):
            headers.pop("Authorization", None)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class Registry:
    """A repository in a registry; raises a :class:`PublishError` for what it refuses."""

    def __init__(self, reference: Reference, timeout_s: float = _TIMEOUT_S) -> None:
        self._at, self._timeout_s = reference, timeout_s
        scheme = "http" if reference.loopback else "https"
        # Docker Hub's images are named after one host and served by another.
        host = "registry-1.docker.io" if reference.host == "docker.io" else reference.host
        self._url = f"{scheme}://{host}/v2/{reference.repository}"
        self._session = _Session()

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest with a tag or a digest; None if there is none."""
        answer = self._read(name)
        if answer is None:
            return None
        document = self._document(answer)
        digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        try:
            content = json.loads(document)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or answer.headers.get(_DIGEST, digest) != digest:
            raise DamagedError(f"registry {self._at.host} has a damaged manifest at {name}")
        return Manifest(digest, content)

    def tags(self) -> list[str]:
        """Return all tags, however many pages the registry makes of them."""
        found: list[str] = []
        query = "n=1000"
        while query:
            answer = self._ask("GET", f"/tags/list?{query}")
            if answer is None:
                break
            try:
                found += map(_text, json.loads(self._document(answer))["tags"] or [])
                following = urlsplit(answer.links.get("next", {}).get("url", "")).query
            except (ValueError, KeyError, TypeError, RecursionError):
                raise PublishError(f"registry {self._at.host} does not list its tags") from None
            query = following if following != query else ""
        return found

    def sha256(self, digest: str, size: int) -> str | None:
        """Return the digest of a blob as it is now, of ``size`` bytes; None if it is not there."""
        headers = {"Accept-Encoding": "identity"}
        answer = self._ask("GET", f"/blobs/{digest}", headers)
        if answer is None:
            return None
        total, left = hashlib.sha256(), size
        for chunk in self._chunks(answer, digest):
            total.update(chunk)
            left -= len(chunk)
            if left < 0:
                break
        return f"sha256:{total.hexdigest()}"

    def blob(self, digest: str, start: int, end: int) -> requests.Response | None:
        """Return a blob's bytes up to ``end``, to be read as they come; None if it is not there."""
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        return self._ask("GET", f"/blobs/{digest}", headers)

    def tag(self, name: str, tag: str) -> None:
        """Point a tag at what another tag or a digest names, byte for byte."""
        answer = self._read(name)
        if answer is None:
            raise PublishError(f"{self._at.name} has no {name}")
        kind = {"Content-Type": answer.headers["Content-Type"]}
        self._ask("PUT", f"/manifests/{tag}", kind, self._document(answer))

    def _read(self, name: str) -> requests.Response | None:
        return self._ask("GET", f"/manifests/{name}", {"Accept": ", ".join(_MANIFESTS)})

    def _document(self, answer: requests.Response) -> bytes:
        """Return what an answer holds, as far as that is no more than a document may have."""
        found = bytearray()
        for chunk in self._chunks(answer, f"what is at {answer.url}"):
            found += chunk
            if len(found) > DOCUMENT_BYTES:
                cause = f"what is at {answer.url} has more than {DOCUMENT_BYTES >> 20} MiB"
                remedy = "ask whoever runs the registry: no manifest or list is so long"
                raise PublishError(f"registry {self._at.host}: {cause}", remedy)
        return bytes(found)

    def _chunks(self, answer: requests.Response, what: str) -> Iterator[bytes]:
        try:
            with answer:
                yield from answer.iter_content(_CHUNK)
        except requests.RequestException as error:
            cause = f"registry {self._at.host}: {what} cannot be read: {type(error).__name__}"
            raise PublishError(cause, "run the command again") from None

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, data: bytes = b""
    ) -> requests.Response | None:
        """Return what a registry answers, whose content is not read yet: it may never end."""
        host, url = self._at.host, f"{self._url}{path}"
        ask = partial(
            self._session.request, method, url, headers=headers, data=data, timeout=self._timeout_s,
            stream=True, proxies=_proxies(self._at),
        )  # fmt: skip
        try:
            answer = ask()
            # Others, to which it may redirect, learn nothing of what is known for it alone.
            asked = (*answer.history, answer)[0].url
            if answer.status_code == 401 and urlsplit(asked)[:2] == urlsplit(answer.url)[:2]:
                answer.close()
                self._log_in(answer.headers.get("WWW-Authenticate", ""))
                answer = ask()
        except (requests.RequestException, ValueError) as error:  # or an address that is none
            why = _UNTRUSTED.search(str(error))
            if why is not None:
                cause = f"the certificate of registry {host} is not trusted: {why[1].strip(' .')}"
                unknown = any(word in why[1] for word in _UNKNOWN)
                remedy = _AUTHORITY if unknown else "name it as its certificate does, or renew that"
                raise PublishError(cause, remedy) from None
            cause = (
                f"registry {host} cannot be reached, or is not a registry: {type(error).__name__}"
            )
            raise PublishError(cause, "check its name, the network and its certificate") from None
        if not answer.ok or method == "PUT":
            answer.close()
        if answer.status_code == 404 and method == "GET":
            return None
        if answer.status_code in (401, 403):
            cause = f"registry {host} does not let you {_DOES[method]} {self._at.repository}"
            raise DeniedError(cause, f"docker login {host}")
        if not answer.ok:
            raise PublishError(f"registry {host} answers {answer.status_code} to {method} {path}")
        return answer

    def _log_in(self, challenge: str) -> None:
        """Answer a registry's challenge with the credentials of ``docker login``, if any."""
        try:
            stored = docker.auth.load_config().resolve_authconfig(self._at.host) or {}
        except (docker.errors.DockerException, ValueError) as error:
            host, why = self._at.host, " ".join(str(error).split())
            cause = f"the credentials of docker login for {host} cannot be read: {why}"
            raise PublishError(cause, f"docker login {host}") from None
        user = stored.get("username") or stored.get("Username")
        word = stored.get("password") or stored.get("Password")
        pair = (str(user), str(word)) if user else None
        if not challenge.lower().startswith("bearer"):
            self._session.auth = pair or _as_it_is
            return
        asked = dict(_CHALLENGE.findall(challenge))
        realm, renewal, form = asked.pop("realm", ""), stored.get("IdentityToken"), {}
        if renewal:  # an identity token, which some logins leave instead of a password
            form = {**asked, "grant_type": "refresh_token", "client_id": "numlkit"}
            form["refresh_token"], asked = str(renewal), {}
        # Prepared, it is judged as it is sent: some addresses name two hosts to two parsers.
        realm = requests.Request("GET", realm, params=asked).prepare().url or ""
        if (pair is not None or form) and not self._may_know_the_password(realm):
            cause = f"registry {self._at.host} wants its password sent unprotected, to {realm}"
            remedy = f"have it name one with https, or docker logout {self._at.host}"
            raise PublishError(cause, remedy)
        session = _Session()
        # A redirection would take a form elsewhere.
        ask = partial(session.post, data=form, allow_redirects=False) if form else session.get
        proxies = _proxies(_host_of(realm))
        answer = ask(realm, auth=pair, timeout=self._timeout_s, stream=True, proxies=proxies)
        if answer.ok:
            try:
                said = json.loads(self._document(answer))
                token = said.get("token") or said.get("access_token")
                token.encode("ascii")
            except (ValueError, AttributeError, RecursionError):
                cause = f"registry {self._at.host} has its users ask {realm}, which gives no token"
                raise PublishError(cause, "ask whoever runs the registry") from None
            self._session.headers["Authorization"] = f"Bearer {token}"

    def _may_know_the_password(self, realm: str) -> bool:
        here = self._at.loopback and _host_of(realm).loopback
        return urlsplit(realm).scheme == "https" or here


def digest_of_tag(image: str) -> str:
    """Return the digest that an image's tag names now; empty if its registry does not say."""
    at = parse_reference(image)
    found = None
    with suppress(PublishError):
        found = Registry(at, _PATIENCE_S).manifest(at.tag)
    return found.digest if found is not None else ""


def _host_of(url: str) -> Reference:
    return Reference(urlsplit(url).hostname or "", "")


def _proxies(at: Reference) -> dict[str, str]:
    """Return what leads to a host: none on the way to this one, where it would read passwords."""
    return {"no_proxy": "*"} if at.loopback else {}


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise TypeError(said)
    return said
