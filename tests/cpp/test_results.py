"""What numl-label --out leaves, also when it cannot be written or the program is ended."""

import resource
import shutil
import signal
import subprocess

import h5py
import pytest

from deploy.host.paths import CHECKOUT
from tests.cpp.scripted import scripted

EVENTS = CHECKOUT / "scripts" / "data" / "demo_events.h5"


@pytest.mark.parametrize("kilobytes", [1, 8, 16, 30, 45, 50])
def test_a_full_disk_is_told_and_no_file_is_left(program, tmp_path, kilobytes):
    """A limit on the size of files stands for the disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))

    with scripted() as server:
        words = [program, "--url", f"127.0.0.1:{server.port}", "--repeat", "20"]
        done = subprocess.run(
            [*words, "--out", tmp_path / "out.h5", EVENTS],
            preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False,
        )
    assert done.returncode == 1, done.stderr
    assert "out.h5 cannot be written" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
