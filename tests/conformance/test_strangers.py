"""What other users of the host call their processes and files is not taken for a deployment's."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from deploy.engines.leftovers import shm_prefix
from tests.kit import SMALL

NOBODY = 65534
UUID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def stranger():
    """Processes of another user; ended when the test ends."""
    if os.geteuid() != 0:
        pytest.skip("only root can start another user's process")
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def pretend(started: list[subprocess.Popen[bytes]], name: str, *words: str) -> int:
    """Start a process of another user under another name; return its number."""
    process = subprocess.Popen(
        [name, "-f", *words], executable=shutil.which("tail"), cwd="/dev/shm",
        user=NOBODY, group=NOBODY, extra_groups=[], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    started.append(process)
    return process.pid


def test_a_stranger_s_process_is_not_taken_for_the_server(kit, single, stranger):
    plan = kit.folder("single") / "plan.json"
    identity = plan.read_text().split('"identity":')[1].split('"')[1]
    pid = pretend(stranger, "/x/tritonserver", "/dev/null", "--", f"--id={identity}")
    os.kill(single["server"]["pid"], signal.SIGKILL)
    assert kit.mended("single", "restarts")["server"]["pid"] != pid
    assert psutil.pid_exists(pid)


def test_a_stranger_s_files_and_processes_do_not_keep_a_deployment_from_its_end(kit, stranger):
    kit.up("crowded", *SMALL)
    prefix = shm_prefix(kit.folder("crowded"))
    region = Path("/dev/shm") / f"{prefix}{UUID}"
    region.touch()
    os.chown(region, NOBODY, NOBODY)
    pid = pretend(stranger, "triton_python_backend_stub", region.name)
    try:
        assert kit.down("crowded")["stopped"] == ["crowded"]
        assert region.exists()
        assert psutil.pid_exists(pid)
    finally:
        region.unlink()
