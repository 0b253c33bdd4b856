"""Cores are counted by affinity and by the quotas of control groups."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.host.cores import cpu_quota, usable_cores
from deploy.host.paths import CHECKOUT

V2_MOUNT = "30 23 0:27 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "32 31 0:29 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


def process(folder: Path, groups: str, mounts: str) -> Path:
    """Write a process's files as the kernel shows them."""
    made = folder / "process"
    made.mkdir()
    (made / "cgroup").write_text(groups)
    (made / "mountinfo").write_text(mounts)
    return made


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("cpu_", "cpu.", 1)).write_text(content + "\n")


def test_the_lowest_quota_on_the_way_up_counts(tmp_path):
    point = tmp_path / "cgroup"
    group(point / "batch", cpu_max="250000 100000")
    group(point / "batch" / "job", cpu_max="max 100000")
    group(point / "batch" / "job" / "step", cpu_max="800000 200000")
    mounts = V2_MOUNT.format(root="/", point=point)
    assert cpu_quota(process(tmp_path, "0::/batch/job/step\n", mounts)) == 2.5


def test_the_older_control_groups_are_read_too(tmp_path):
    point = tmp_path / "cpu"
    group(point / "docker" / "id", cpu_cfs_quota_us="150000", cpu_cfs_period_us="100000")
    group(point, cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    groups = "4:memory:/docker/id\n2:cpu,cpuacct:/docker/id\n0::/\n"
    mounts = V1_MOUNT.format(root="/", point=point)
    assert cpu_quota(process(tmp_path, groups, mounts)) == 1.5


def test_a_container_whose_mount_begins_at_its_own_group_sees_its_quota(tmp_path):
    point = tmp_path / "cpu"
    group(point, cpu_cfs_quota_us="300000", cpu_cfs_period_us="100000")
    mounts = V1_MOUNT.format(root="/docker/id", point=point)
    assert cpu_quota(process(tmp_path, "2:cpu,cpuacct:/docker/id\n", mounts)) == 3


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cpu_quota(tmp_path) is None
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"), [("10000", 1), ("100000", 1), ("140000", 1), ("150000", 2), ("9900000", 8)]
)
def test_a_quota_counts_to_the_nearest_core_and_never_beyond_the_affinity(
    quota, cores, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    group(tmp_path / "cgroup", cpu_max=f"{quota} 100000")
    mounts = V2_MOUNT.format(root="/", point=tmp_path / "cgroup")
    assert usable_cores(process(tmp_path, "0::/\n", mounts)) == cores


@contextmanager
def limited_group(quota: int) -> Iterator[Path]:
    """Make a control group of this kernel with a quota (microseconds in 100 ms)."""
    mounted = Path("/sys/fs/cgroup/cpu")
    folder = mounted / f"numlkit-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        yield folder
    finally:
        folder.rmdir()


def test_in_a_real_control_group_a_deployment_gets_its_share_of_instances():
    code = (
        "import os, pathlib, sys;"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()));"
        "from deploy.deployment.deployment import Deployment;"
        "from deploy.deployment.limits import Limits;"
        "free = Limits(waiting=0, wait_s=0);"
        "print(*(Deployment(limits=free, cpus=n).instance_count() for n in (None, 64)))"
    )
    with limited_group(100_000) as folder:
        command = [sys.executable, "-c", code, str(folder)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
