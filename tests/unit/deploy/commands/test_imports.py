"""What a command imports: each is a process of its own, which people and scripts wait for."""

import sys

from deploy.host.paths import CHECKOUT
from tests.programs import run_program

SLOW = {"numpy", "grpc", "cryptography", "docker", "matplotlib", "h5py", "requests", "rich"}


def test_what_takes_long_to_import_is_left_until_it_is_needed():
    commands = [f"deploy.commands.{name}" for name in ("up", "down", "status", "logs", "doctor")]
    script = f"import sys, {', '.join(commands)}; print(*sys.modules)"
    done = run_program([sys.executable, "-c", script], cwd=CHECKOUT, check=True)
    assert SLOW.isdisjoint(done.stdout.split())
