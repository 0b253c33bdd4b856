"""What ``published`` says of a place: releases, their digests, and whether that is verified."""

import hashlib
import json
from unittest.mock import Mock

import pytest

from deploy.commands import published
from deploy.publishing.watch import PlaceWatch
from tests.kit import free_port
from tests.unit.deploy.artefacts.test_trust import make_publisher


@pytest.fixture
def owner(home):
    found = make_publisher(home)
    found.release(b"image")
    return found


def test_a_release_is_listed_with_its_digest(owner, capsys):
    assert published.main(["--json", str(owner.place)]) == 0
    answer = json.loads(capsys.readouterr().out)
    [release] = answer["releases"]
    assert release["what"] == f"sif of numl.sif, sha256:{hashlib.sha256(b'image').hexdigest()}"
    assert not answer["verified"]


def test_a_watch_that_is_ended_has_not_failed(owner, monkeypatch, capsys):
    monkeypatch.setattr(PlaceWatch, "check", Mock(side_effect=KeyboardInterrupt))
    assert published.main([str(owner.place), "--watch", "--metrics", str(free_port())]) == 0
    assert capsys.readouterr().err == ""


def test_whether_a_place_is_verified_is_said_in_a_line(owner, capsys):
    assert published.main([str(owner.place)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "nothing is verified: no key is given (--verify)"
    key = str(owner.signer.path)
    assert published.main([str(owner.place), "--verify", key]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"signed by the owner of {key}: statement 1"
    (owner.place / "1" / "numl.sif").unlink()
    assert published.main([str(owner.place), "--verify", key]) == 1
    assert "signed by" not in capsys.readouterr().out
