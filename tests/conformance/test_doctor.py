import os
import signal
import subprocess
from typing import Any

from deploy.deployment.state import ProcessId
from tests.kit import until


def _about(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [f for f in answer["findings"] if f["finding"] == f"deployment {name}"]


def test_a_deployment_that_serves_is_fine_to_the_doctor(kit, demo):
    (found,) = _about(kit.json("doctor", "--name", "demo"), "demo")
    assert found["level"] == "ok"
    assert f"with engine {kit.engine}" in found["detail"]


def test_a_deployment_of_which_nothing_lives_is_cleared_away(kit, single):
    os.kill(single["supervisor"]["pid"], signal.SIGKILL)
    if kit.engine == "docker":  # which starts a server that only dies again
        subprocess.run(["docker", "kill", single["container"]], check=True, capture_output=True)
    else:
        os.kill(single["server"]["pid"], signal.SIGKILL)
    server = ProcessId.model_validate(single["server"])
    until(lambda: server.process() is None, "its death")
    (found,) = _about(kit.json("doctor"), "single")
    assert (found["level"], found["fixable"]) == ("problem", True)
    fixed = kit.json("doctor", "--fix")
    assert any("cleared deployment single" in fix["said"] for fix in fixed["fixes"])
    assert not _about(fixed, "single")
    assert not kit.leftovers("single", single["scratch"])
