"""What services other than the one in tests/integration answer; it is played here."""

import threading
from dataclasses import dataclass, field
from functools import cache, cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import botocore.session
import pytest
from numl_sync.bucket import Bucket
from numl_sync.errors import BucketError, ReleaseError

from numl_formats.errors import StatementError
from numl_formats.location import Location

SESSION = cache(botocore.session.get_session)  # which reads many files


@dataclass
class Service:
    """What it answers to every question; a test changes it."""

    status: int = 200
    body: bytes = b"0123456789"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    chunked: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @cached_property
    def bucket(self) -> Bucket:
        return Bucket(Location(f"http://127.0.0.1:{self.port}", "models", "prod"))


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret of nobody")
    monkeypatch.setattr("botocore.session.get_session", SESSION)
    played = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            played.asked.append({"path": self.path, **self.headers})
            self.send_response(played.status)
            for name, value in played.headers.items():
                self.send_header(name, value)
            body = played.body
            if played.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            else:
                self.send_header("Content-Length", str(played.length or len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        played.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield played
        server.shutdown()
        thread.join()


def test_it_asks_for_what_has_changed(service):
    service.headers = {"ETag": '"one"'}
    assert service.bucket.published(None) == ('"one"', service.body)
    assert service.bucket.published('"other"') == ('"one"', service.body)
    assert service.bucket.published('"one"') is None  # though it did not answer 304
    assert [asked.get("If-None-Match") for asked in service.asked] == [None, '"other"', '"one"']
    assert {asked["path"] for asked in service.asked} == {"/models/prod/published.json"}


def test_a_service_without_etags_will_do(service):
    found = service.bucket.published(None)
    assert service.bucket.published(found[0]) is None
    service.body = b"changed"
    assert service.bucket.published(found[0]) is not None
    assert not any("If-None-Match" in asked for asked in service.asked)


def test_a_file_is_read_from_where_it_is_wanted(service):
    service.status, service.body = 206, b"789"
    assert b"".join(service.bucket.read("a/1/x", 7, 10)) == b"789"
    assert service.asked[0]["Range"] == "bytes=7-"
    assert service.asked[0]["path"] == "/models/prod/a/1/x"


def test_a_file_of_another_size_is_not_read(service):
    for body in (service.body, b""):
        service.body = body
        words = rf"^a/1/x has {len(body)} bytes, published\.json says 9$"
        with pytest.raises(ReleaseError, match=words):
            list(service.bucket.read("a/1/x", 0, 9))


def test_a_service_that_knows_no_ranges_will_do(service):
    assert b"".join(service.bucket.read("a/1/x", 4, 10)) == b"456789"
    service.body = b"0" * 300_000 + b"end"
    assert b"".join(service.bucket.read("a/1/x", 300_000, 300_003)) == b"end"


def test_an_answer_that_ends_early_is_one_line(service):
    service.length = 20
    with pytest.raises(BucketError) as caught:
        list(service.bucket.read("a/1/x", 0, 20))
    assert "\n" not in str(caught.value)
    service.headers = {"ETag": '"one"'}
    with pytest.raises(BucketError):
        service.bucket.published(None)


def test_an_endless_document_is_not_read(service, monkeypatch):
    monkeypatch.setattr("numl_sync.bucket.LARGEST", 5)
    with pytest.raises(StatementError, match=r"^published\.json has more than 5 bytes$"):
        service.bucket.published(None)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "cannot be read with these credentials: AccessDenied"),
        (404, "NoSuchKey", "has no published.json: numlkit publish writes it"),
        (404, "NoSuchBucket", "prod: NoSuchBucket (status 404)"),
        (500, "InternalError", "prod: InternalError (status 500)"),
        (503, "SlowDown", "prod: SlowDown (status 503)"),
        (500, "no\nname", "prod: an unnamed error (status 500)"),
    ],
)
def test_an_error_is_one_line_without_a_key(service, status, code, words):
    service.status = status
    service.body = f"<Error><Code>{code}</Code><Message>no\nno</Message></Error>".encode()
    with pytest.raises(BucketError) as caught:
        service.bucket.published(None)
    said = str(caught.value)
    assert words in said
    assert said.startswith(f"s3://http://127.0.0.1:{service.port}/models/prod")
    assert "\n" not in said
    assert "secret" not in said
    assert len(service.asked) == 1


def test_a_service_that_redirects_is_said_to(service):
    service.status, service.body = 301, b""
    with pytest.raises(BucketError, match="models/prod: it redirects to another address"):
        service.bucket.published(None)


def test_a_file_of_unknown_length_is_read_to_its_end(service):
    service.chunked = True
    assert b"".join(service.bucket.read("a/1/x", 0, 10)) == service.body


def test_a_signature_that_is_not_there_is_none(service):
    assert service.bucket.signature("signatures/x.sig") == service.body
    service.status, service.body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
    assert service.bucket.signature("signatures/x.sig") is None
    service.status, service.body = 200, b"A" * 5000
    with pytest.raises(StatementError, match="has more than 4096 bytes"):
        service.bucket.signature("signatures/x.sig")


@pytest.mark.parametrize("error", [KeyError("ContentLength"), AttributeError("x"), MemoryError()])
def test_whatever_the_client_raises_is_no_end(service, monkeypatch, error):
    def broken(*_words: object, **_more: object) -> None:
        raise error

    bucket = service.bucket
    monkeypatch.setattr(bucket, "_get", broken)
    for ask in (
        lambda: bucket.published(None),
        lambda: bucket.signature("x"),
        lambda: list(bucket.read("a/1/x", 0, 10)),
    ):
        with pytest.raises(BucketError, match="an answer that S3 does not give"):
            ask()
