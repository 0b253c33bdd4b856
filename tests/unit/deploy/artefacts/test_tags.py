"""A tag that is set back to an older signed image; cosign's answers are given."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.artefacts.keys import Signer, read_signer
from deploy.artefacts.reference import parse_reference
from deploy.artefacts.seen import memory_of
from deploy.artefacts.tags import verify_tag
from deploy.host.errors import SignatureError
from tests.cosign import Cosign

NAME = "registry.example.org/lab/numl"
IMAGE = parse_reference(f"{NAME}@sha256:{'ab' * 32}")


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cosign:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Cosign.install(tmp_path / "bin", monkeypatch)


def accepts(
    cosign: Cosign, sequence: int | None, tag: str = "prod", key: Signer | None = None
) -> bool:
    optional = {"sequence": str(sequence), "created": "2026-11-23T02:27:00Z"}
    cosign.answer(json.dumps([{"optional": optional if sequence is not None else None}]))
    try:
        signed = verify_tag(parse_reference(f"{NAME}:{tag}"), IMAGE, key or read_signer(cosign.key))
    except SignatureError:
        return False
    assert sequence == (signed.sequence if signed is not None else None)
    return True


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=st.lists(st.none() | st.integers(1, 5), min_size=2, max_size=5))
def test_a_tag_names_nothing_older_than_it_did(cosign: Cosign, history: list[int | None]) -> None:
    memory_of(f"{NAME}:prod", read_signer(cosign.key)).unlink(missing_ok=True)
    newest = 0
    for sequence in history:
        assert accepts(cosign, sequence) == ((sequence or 0) >= newest)
        newest = max(newest, sequence or 0)


def test_what_was_seen_is_of_one_tag_and_one_key(
    cosign: Cosign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert accepts(cosign, 5)
    assert not accepts(cosign, 4)
    assert accepts(cosign, 4, tag="test")
    others = Cosign.install(tmp_path / "others", monkeypatch)
    assert accepts(others, 4, key=read_signer(others.key))


def test_the_tag_and_both_numbers_are_named(cosign: Cosign) -> None:
    assert accepts(cosign, 5)
    before = f"{NAME}:prod names an older image than before: it is signed with"
    for signed, number in (([], "no number"), ([3], "number 3")):
        facts = [{"sequence": str(n), "created": "2026-11-23T02:27:00Z"} for n in signed]
        cosign.answer(json.dumps([{"optional": each} for each in facts]))
        words = re.escape(f"{before} {number}, and 5 was seen there")
        with pytest.raises(SignatureError, match=f"^{words}$") as caught:
            verify_tag(parse_reference(f"{NAME}:prod"), IMAGE, read_signer(cosign.key))
        assert "publish DEST --sign KEY" in str(caught.value.remedy)
