import threading
from unittest.mock import Mock

import pytest

from deploy.checks.all import examine
from deploy.host.errors import KitError, LaunchError
from deploy.host.finding import Finding, ok, refuse


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (KitError("no engine", "install one"), Finding("problem", "broken", "no engine",
                                                        "install one")),
        (PermissionError(13, "Permission denied", "/cache"),
         Finding("problem", "broken", "/cache: Permission denied")),
        (ZeroDivisionError("a\nb"),
         Finding("problem", "broken", "the check itself failed: ZeroDivisionError: a b")),
    ],
)  # fmt: skip
def test_a_check_that_fails_is_a_finding_and_stops_no_other(error, finding):
    good = ok("disk", "large")
    broken = ("broken", Mock(side_effect=error))
    checks = [("disk", lambda: [good]), broken, ("disk", lambda: [good])]
    assert examine(checks) == [good, finding, good]


def test_a_check_that_never_ends_is_given_up_and_named():
    never = threading.Event()

    def hang() -> list[Finding]:
        never.wait(60)
        return []

    findings = examine([("disk", hang), ("ports", lambda: [ok("ports", "free")])], 0.2)
    never.set()
    assert [(f.level, f.subject) for f in findings] == [("problem", "disk"), ("ok", "ports")]
    assert findings[0].detail == "no answer within 0 s"


def test_a_launch_is_refused_for_the_first_problem_and_for_no_warning():
    warning = Finding("warning", "disk", "small")
    first = Finding("problem", "disk", "full", "free some")
    refuse([ok("disk", "large"), warning])
    with pytest.raises(LaunchError) as caught:
        refuse([warning, first, Finding("problem", "disk", "later")])
    assert (caught.value.cause, caught.value.remedy) == ("full", "free some")
