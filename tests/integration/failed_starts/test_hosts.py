"""Starts that fail by what a host lacks: a cause in one line, in time."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deploy.deployment.state import LaunchPlan
from deploy.host.paths import CHECKOUT, cache_folder
from numl_formats.golden import GoldenEvent
from tests.failed_start import GOOD_MODEL
from tests.unit.deploy.site_repository import write_archive
from tests.views import only


def _with_small(plan: LaunchPlan, folder: str, size: str, keep: Sequence[Path] = ()) -> LaunchPlan:
    """Let the server see a small file system in place of ``folder`` (a mount namespace).

    Folders below it that the server needs are kept.
    """
    steps = only(Path(folder), keep, f"size={size}")
    script = " && ".join([*steps, 'exec "$0" "$@"'])
    wrapped = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, *plan.arguments)
    return plan.model_copy(update={"arguments": wrapped})


def test_a_shared_memory_folder_that_is_too_small_is_named(bench):
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    failure = bench.failure(_with_small(plan, "/dev/shm", "512k"))
    assert failure.cause.startswith("/dev/shm is too small")


def test_a_shared_memory_folder_that_is_too_small_for_a_request_is_named(bench):
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    large = np.ones(1_000_000, np.float32)
    golden = {"echo": GoldenEvent({"x": large}, {"y": large})}
    failure = bench.failure(_with_small(plan, "/dev/shm", "3m"), golden=golden)
    assert failure.cause.endswith("/dev/shm is full: a request's tensors do not fit")


def test_a_tmp_that_is_too_small_for_a_packed_environment_is_named(bench):
    packed = bench.folder / "env.tar.gz"
    write_archive(packed, more={"lib/large": os.urandom(3_000_000)})
    plan = bench.plan(environment=packed, code=GOOD_MODEL)
    small = _with_small(plan, "/tmp", "1m", keep=(cache_folder(), bench.folder, CHECKOUT))
    assert bench.failure(small).cause.startswith("/tmp is full")
