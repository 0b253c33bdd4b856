"""What an audit finds in a registry, which is played; a real one is in tests/containers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from deploy.artefacts.reference import parse_reference
from deploy.artefacts.registry import Registry
from deploy.host.errors import PublishError
from deploy.publishing.audit import audit


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Played(ThreadingHTTPServer):
    """A repository: blobs and manifests by digest, and digests by tag, in pages of two."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stored: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.at = parse_reference(f"127.0.0.1:{self.server_address[1]}/lab/numl:prod")
        for content in ("older", "newer"):
            self.push("prod", content)
        self.tags["other"] = self.tags["prod"]

    def store(self, content: bytes) -> str:
        digest = digest_of(content)
        self.stored[digest] = content
        return digest

    def push(self, tag: str, content: str) -> None:
        """Publish an image with a layer, and cosign's signature of it."""
        image = self.put(f"config of {content}", f"layer of {content}")
        self.tags[f"{tag}-{digest_of(f'config of {content}'.encode())[7:19]}"] = image
        self.tags[f"{image.replace(':', '-')}.sig"] = self.put("{}", f"signature of {content}")
        self.tags[tag] = image

    def put(self, *parts: str) -> str:
        config, *layers = (
            {"digest": self.store(part.encode()), "size": len(part)} for part in parts
        )
        return self.store(json.dumps({"config": config, "layers": layers}).encode())

    def damage(self, content: str, *, lose: bool = False) -> None:
        digest = digest_of(content.encode())
        if lose:
            del self.stored[digest]
        else:
            self.stored[digest] = b"!" * len(content)


class _Handler(BaseHTTPRequestHandler):
    server: Played

    def do_GET(self) -> None:
        url, here = urlsplit(self.path), self.server
        kind, name = url.path.split("/")[-2:]
        if kind == "tags":
            after = parse_qs(url.query).get("last", [""])[0]
            tags = [tag for tag in sorted(here.tags) if tag > after]
            link = {"Link": f'</v2/lab/numl/tags/list?n=2&last={"".join(tags[1:2])}>; rel="next"'}
            self.answer(json.dumps({"tags": tags[:2]}).encode(), link if tags[2:] else {})
            return
        digest = here.tags.get(name, name)
        if digest in here.stored:
            said = {"Docker-Content-Digest": digest}
            self.answer(here.stored[digest], said)
        else:
            self.send_error(404)

    def answer(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def played():
    with Played() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def found_in(played: Played) -> tuple[list[str], list[str], list[str]]:
    """Return the releases that are damaged, the problems and the notes."""
    registry = Registry(played.at)
    listing = audit(registry, played.at, registry.manifest("prod"), None)
    assert len(listing.entries) == 2
    return (
        [entry.release for entry in listing.entries if entry.damaged],
        list(listing.problems),
        list(listing.notes),
    )


OLDER, NEWER = (
    f"prod-{digest_of(f'config of {name}'.encode())[7:19]}" for name in ("older", "newer")
)


def test_whole_releases_and_their_signatures_are_no_problem(played):
    assert found_in(played) == ([], [], [])


def digest(part: str) -> str:
    return digest_of(part.encode())


@pytest.mark.parametrize(
    ("damage", "damaged", "problem"),
    [
        (lambda on: on.damage("layer of older"), [OLDER],
         f"{OLDER}: {digest('layer of older')} is missing or damaged"),
        (lambda on: on.damage("config of newer", lose=True), [NEWER],
         f"{NEWER}: {digest('config of newer')} is missing or damaged"),
        (lambda on: on.tags.update({OLDER: on.tags[NEWER]}), [OLDER],
         f"{OLDER}: it names something else than was published there"),
        (lambda on: on.tags.update({OLDER: on.store(b'{"config": {"digest": "../x"}}')}), [OLDER],
         f"{OLDER}: its manifest is damaged"),
    ],
    ids=["a layer is changed", "a configuration is lost", "a tag is moved", "nonsense"],
)  # fmt: skip
def test_what_is_damaged_of_any_release_is_named(
    played, damage: Callable[[Played], None], damaged: list[str], problem: str
):
    damage(played)
    assert found_in(played) == (damaged, [problem], found_in(played)[2])


def test_a_damaged_signature_is_named(played):
    played.damage("signature of older")
    [problem] = found_in(played)[1]
    assert problem.startswith(f"{played.tags[OLDER].replace(':', '-')}.sig: sha256:")


def test_a_manifest_that_is_not_what_its_tag_names_is_named(played):
    played.stored[played.tags[OLDER]] = b'{"layers": []}'
    registry = Registry(played.at)
    with pytest.raises(PublishError, match=f"has a damaged manifest at {OLDER}"):
        registry.manifest(OLDER)
    listing = audit(registry, played.at, registry.manifest("prod"), None)
    assert listing.problems == (
        f"{OLDER}: registry {played.at.host} has a damaged manifest at {OLDER}",
    )


def test_a_tag_that_names_no_release_is_a_problem_and_what_others_pushed_is_noted(played):
    played.tags["mine"] = played.put("{}", "mine")
    assert found_in(played) == ([], [], [f"not published by the kit: {played.at.name}:mine"])
    played.tags["prod"] = played.tags["mine"]
    assert found_in(played)[1] == [f"prod names {played.tags['mine']}, which is no release"]
    del played.tags["prod"]
    assert found_in(played)[1] == ["prod names nothing"]
