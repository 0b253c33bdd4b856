"""A tag that is set back to an older signed image; cosign's answers are given."""

import json
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.artefacts import cosign
from deploy.artefacts.cosign import unsigned
from deploy.artefacts.keys import Signer, read_signer
from deploy.artefacts.reference import parse_reference
from deploy.artefacts.seen import memory_of
from deploy.artefacts.tags import next_signed, refuse_gone, verify_tag
from deploy.host.errors import SignatureError
from tests.keys import new_key, write_key

NAME = "registry.example.org/lab/numl"
PROD = parse_reference(f"{NAME}:prod")
IMAGE = parse_reference(f"{NAME}@sha256:{'ab' * 32}")


def facts(sequence: int, tag: str = "prod", line: str = "one") -> dict[str, str]:
    return {
        "tag": tag, "line": line, "sequence": str(sequence), "created": "2026-11-23T02:27:00Z",
    }  # fmt: skip


@pytest.fixture
def signer(tmp_path):
    return read_signer(write_key(new_key(), tmp_path / "cosign.pub"))


@pytest.fixture
def answer(monkeypatch):
    """Has cosign say what is signed with every image."""

    def say(*said: dict[str, str] | None) -> None:
        answered = json.dumps([{"optional": each} for each in said])
        monkeypatch.setattr(cosign, "_verify", Mock(return_value=answered))

    return say


@pytest.fixture
def accepts(answer, signer):
    def accept(sequence: int | None, tag: str = "prod", key: Signer = signer) -> bool:
        answer(facts(sequence, tag) if sequence is not None else None)
        # With a number comes one image.
        image = replace(IMAGE, digest=f"sha256:{sequence or 0:064x}")
        try:
            signed = verify_tag(parse_reference(f"{NAME}:{tag}"), image, key)
        except SignatureError:
            return False
        assert sequence == (signed.sequence if signed is not None else None)
        return True

    return accept


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=st.lists(st.none() | st.integers(1, 5), min_size=2, max_size=5))
def test_a_tag_names_nothing_older_than_it_did(accepts, signer, history):
    memory_of(f"{NAME}:prod", signer).unlink(missing_ok=True)
    newest = 0
    for sequence in history:
        assert accepts(sequence) == ((sequence or 0) >= newest)
        newest = max(newest, sequence or 0)


def test_what_was_seen_is_of_one_tag_and_one_key(accepts, tmp_path):
    assert accepts(5)
    assert not accepts(4)
    assert accepts(4, tag="test")
    assert accepts(4, key=read_signer(write_key(new_key(), tmp_path / "others.pub")))


def test_the_tag_and_both_numbers_are_named(accepts, answer, signer):
    assert accepts(5)
    before = f"{NAME}:prod names an older image than before: it is signed with"
    for signed, number in (([], "no number"), ([3], "number 3")):
        answer(*map(facts, signed))
        words = re.escape(f"{before} {number}, and 5 was seen there")
        with pytest.raises(SignatureError, match=f"^{words}$") as caught:
            verify_tag(PROD, IMAGE, signer)
        assert "publish DEST --sign KEY" in str(caught.value.remedy)


def test_an_image_that_was_signed_for_another_tag_or_repository_is_refused(answer, signer):
    answer(facts(5, "test"), facts(6, "next"))
    with pytest.raises(SignatureError, match=r"names an image that was signed for next, test$"):
        verify_tag(PROD, IMAGE, signer)
    # It may be signed for several.
    answer(facts(9, "test", "two"), facts(5))
    signed = verify_tag(PROD, IMAGE, signer)
    assert (signed.tag, signed.line, signed.sequence) == ("prod", "one", 5)
    answer(facts(9, line="two"))
    with pytest.raises(SignatureError, match=r"this tag of another repository$") as caught:
        verify_tag(PROD, IMAGE, signer)
    assert str(caught.value.remedy).endswith(f"then remove {memory_of(str(PROD), signer)}")


def test_another_image_with_the_number_of_the_newest_is_refused(answer, signer):
    answer(facts(5))
    verify_tag(PROD, IMAGE, signer)
    with pytest.raises(SignatureError, match=r"another image than before with number 5$"):
        verify_tag(PROD, replace(IMAGE, digest=f"sha256:{'cd' * 32}"), signer)
    verify_tag(PROD, IMAGE, signer)


def test_what_is_signed_next_is_of_the_tag_s_line_and_has_a_higher_number(
    answer, signer, monkeypatch
):
    answer()
    first, other = (next_signed(PROD, None, (), signer) for _ in range(2))
    assert first.line != other.line
    # Of a clock that was set back.
    answer(facts(2**40), facts(2**41, "test", "two"))
    assert next_signed(PROD, IMAGE, (), signer).sequence == 2**40 + 1
    assert next_signed(PROD, IMAGE, (), signer).line == "one"
    verify_tag(PROD, IMAGE, signer)
    # What the tag names now is somebody else's.
    monkeypatch.setattr(cosign, "_verify", Mock(side_effect=unsigned("it")))
    for named in (None, IMAGE):
        new = next_signed(PROD, named, (), signer)
        assert (new.tag, new.line, new.sequence) == ("prod", "one", 2**40 + 1)


def test_a_tag_that_is_gone_is_told_where_it_was_seen(answer, signer):
    refuse_gone(PROD, signer)
    answer(facts(5))
    verify_tag(PROD, IMAGE, signer)
    with pytest.raises(SignatureError, match="numl:prod, which named a signed image, is gone"):
        refuse_gone(PROD, signer)
