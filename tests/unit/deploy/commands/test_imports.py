"""What a command imports: each is a process of its own, which people and scripts wait for."""

import subprocess
import sys

from deploy.host.paths import CHECKOUT

SLOW = {"numpy", "grpc", "cryptography", "docker", "matplotlib", "h5py", "requests", "rich"}


def test_what_takes_long_to_import_is_left_until_it_is_needed():
    commands = [f"deploy.commands.{name}" for name in ("up", "down", "status", "logs", "doctor")]
    script = f"import sys, {', '.join(commands)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert SLOW.isdisjoint(done.stdout.split())
