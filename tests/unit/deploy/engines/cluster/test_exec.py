"""What the cluster says of a command that it ran in a pod."""

from __future__ import annotations

import json

import pytest

from deploy.engines.cluster import _ended

EXIT = {
    "reason": "NonZeroExitCode",
    "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
}
NO_PROGRAM = 'exec: "python": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (json.dumps({"status": "Success"}), (0, "said")),
        (json.dumps({"status": "Failure", **EXIT}), (3, "said")),
        (json.dumps({"status": "Failure", "message": NO_PROGRAM}), (1, NO_PROGRAM)),
        ("", (1, "the connection to the pod broke")),
        ('{"status": "Fail', (1, "the connection to the pod broke")),
    ],
)
def test_how_a_command_in_a_pod_ended(status: str, ended: tuple[int, str]) -> None:
    assert _ended(status, "said") == ended
