"""A message stays one that can be read."""

from deploy.host.errors import KitError


def test_a_cause_of_megabytes_is_cut_in_its_middle():
    error = KitError(f"checkpoint {'x' * 10**6}: no such file", f"try {'y' * 10**6}")
    for text in (error.cause, str(error), error.remedy):
        assert len(text) < 2100
        assert " [...] " in text
    assert error.cause.startswith("checkpoint xxx")
    assert error.cause.endswith("xxx: no such file")


def test_an_ordinary_cause_is_shown_whole():
    cause = "no engine can start it: " + "; ".join(["docker: no such image"] * 50)
    assert KitError(cause).cause == cause
