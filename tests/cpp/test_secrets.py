"""Tokens and certificates that cannot be used, or are renewed while they are."""

import json

import pytest

from tests.certificates import Authority
from tests.cpp.conftest import only_line
from tests.cpp.scripted import scripted
from tests.inputs import EVENTS


@pytest.mark.parametrize("token", [b"", b"\n\n", b"abc\ndef\n", b"\xef\xbb\xbfabc\n", b"abc\0"])
def test_what_is_no_token_is_told_in_one_line(label, tmp_path, token):
    (tmp_path / "token").write_bytes(token)
    done = label("--url", "grpcs://h", "--token-file", tmp_path / "token", EVENTS)
    assert only_line(done, 2).startswith(f"{tmp_path}/token: no token")


@pytest.mark.parametrize(("flag", "what"), [("--token-file", "token"), ("--ca", "certificates")])
def test_a_folder_in_place_of_a_secret_is_told_in_one_line(label, tmp_path, flag, what):
    done = label("--url", "grpcs://h", flag, tmp_path, EVENTS)
    assert only_line(done, 2).startswith(f"{tmp_path}: no {what} to read")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--ca", "key"), "certificates"),
        (("--cert", "key", "--key", "key"), "certificate"),
        (("--cert", "cert", "--key", "cert"), "private key"),
    ],
)
def test_a_file_that_is_another_than_it_is_named_for_is_told_before_anything_is_sent(
    label, tmp_path, flags, what
):
    pair = Authority(tmp_path, "site").issue("client")
    files = {"key": pair.key, "cert": pair.cert}
    done = label("--url", "grpcs://h", *(files.get(word, word) for word in flags), EVENTS)
    assert only_line(done, 2).startswith(f"{files[flags[-1]]}: no {what} in PEM form")


def test_a_certificate_with_the_key_of_another_is_refused_and_not_tried_again(label, tmp_path):
    authority = Authority(tmp_path, "site")
    mine, other = authority.issue("client"), authority.issue("other")
    with scripted(pair=authority.issue("127.0.0.1"), clients=authority) as server:
        where = ("--url", f"grpcs://{server.address}", "--ca", authority.file)
        done = label(*where, "--cert", mine.cert, "--key", other.key, "--json", EVENTS)
    assert (done.returncode, json.loads(done.stdout)["retries"]) == (1, 0)
    said = "the certificates or the private key are damaged, or do not belong together"
    assert done.stderr.splitlines()[0].endswith(said)


def test_secrets_of_the_fallback_server_are_read_before_it_is_needed(label):
    flags = ("--fallback", "sleep 9", "--fallback-url", "grpcs://h", "--ca", "/nowhere")
    said = only_line(label(*flags, EVENTS), 2)
    assert said.startswith("/nowhere: no certificates to read")


def test_a_folder_of_authorities_is_passed_over(label, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/certs")
    done = label("--url", "grpcs://127.0.0.1:1", "--timeout", 0.3, EVENTS)
    assert done.returncode == 1
    assert "unreachable for 0.3 s: grpcs://127.0.0.1:1: " in done.stderr


def test_the_token_before_is_sent_while_the_file_is_renewed(label, tmp_path):
    authority = Authority(tmp_path, "site")
    token = tmp_path / "token"
    token.write_text(" secret\r\n")

    def empty(number: int) -> None:
        if number == 0:
            token.write_text("")

    flags = ("--ca", authority.file, "--token-file", token, "--in-flight", 1, "--quiet")
    with scripted(empty, authority.issue("127.0.0.1")) as server:
        done = label("--url", f"grpcs://{server.address}", *flags, EVENTS)
    assert done.returncode == 0, done.stderr
    assert [said["authorization"] for said in server.metadata] == ["Bearer secret"] * 5
