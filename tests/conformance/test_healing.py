import os
import signal
from pathlib import Path
from typing import Any

import psutil

from deploy.deployment.state import ProcessId
from deploy.engines.server import living_stubs
from tests.kit import SMALL, until


def _stub(answer: dict[str, Any]) -> int:
    return living_stubs(psutil.Process(answer["server"]["pid"]))[0].process.pid


def test_a_killed_stub_is_healed_without_a_restart_and_a_killed_server_is_started_again(
    kit, single
):
    os.kill(_stub(single), signal.SIGKILL)
    state = kit.mended("single", "heals")
    assert state["heals"] == 1
    assert state["server"] == single["server"], "the server was not restarted"

    # A container that takes its place has the same name: only what lies in /dev/shm counts.
    regions = {left for left in kit.leftovers("single") if left.is_absolute()}
    os.kill(single["server"]["pid"], signal.SIGKILL)
    state = kit.mended("single", "restarts")
    assert state["restarts"] == 1
    assert state["server"] != single["server"]
    assert not regions & set(kit.leftovers("single", single["scratch"])), "the dead one's are swept"
    assert not [path for path in single["scratch"] if Path(path).exists()]


def test_without_healing_a_killed_stub_stays_reported(kit):
    answer = kit.up("unhealed", *SMALL, "--no-heal")
    os.kill(_stub(answer), signal.SIGKILL)
    until(lambda: kit.json("status", "--name", "unhealed")["status"] != 0, "the notice")
    status = kit.json("status", "--name", "unhealed")
    assert "model nugraph3: 1 of 3 stubs dead" in status["problems"]
    kit.end("unhealed")


def test_a_killed_supervisor_is_reported_and_down_still_stops_everything(kit, single):
    os.kill(single["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: kit.json("status", "--name", "single")["status"] != 0, "the notice")
    problems = kit.json("status", "--name", "single")["problems"]
    assert problems == ["the supervisor is dead: failures will not be healed"]
    # A doctor leaves the server alone.
    fixed = kit.json("doctor", "--fix")
    assert fixed["status"] == 1
    (found,) = (f for f in fixed["findings"] if f["finding"] == "deployment single")
    assert (found["level"], found["fixable"]) == ("problem", False)
    assert "its server still runs" in found["detail"]
    assert kit.json("smoke", "--name", "single")["ok"]
    assert kit.down("single")["stopped"] == ["single"]
    assert ProcessId.model_validate(single["server"]).process() is None
    assert not kit.leftovers("single", single["scratch"])


def test_everything_killed_at_once_leaves_nothing_after_down(kit, single):
    server = psutil.Process(single["server"]["pid"])
    stubs = [stub.process.pid for stub in living_stubs(server)]
    # The server last: in a container all end with it.
    for pid in (single["supervisor"]["pid"], *stubs, server.pid):
        os.kill(pid, signal.SIGKILL)
    assert kit.down("single")["stopped"] == ["single"]
    assert not kit.leftovers("single", single["scratch"])
