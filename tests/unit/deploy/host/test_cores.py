"""Cores are counted by affinity and by the quotas of control groups."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.host.cores import cpu_quota, usable_cores
from deploy.host.paths import CHECKOUT
from tests.programs import run_program

V2_MOUNT = "30 23 0:27 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "32 31 0:29 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


def process(folder: Path, files: Mapping[str, str], groups: str, mount: str, root: str) -> Path:
    """Write control groups, and a process's files as the kernel shows them."""
    point, made = folder / "cgroup", folder / "process"
    made.mkdir()
    for name, content in files.items():
        (point / name).parent.mkdir(parents=True, exist_ok=True)
        (point / name).write_text(f"{content}\n")
    (made / "cgroup").write_text(groups)
    (made / "mountinfo").write_text(mount.format(root=root, point=point))
    return made


NESTED = {
    "batch/cpu.max": "250000 100000",
    "batch/job/cpu.max": "max 100000",
    "batch/job/step/cpu.max": "800000 200000",
}
OLDER = {
    **{"docker/id/cpu.cfs_quota_us": "150000", "docker/id/cpu.cfs_period_us": "100000"},
    **{"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
}
OWN = {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "groups", "mount", "root", "quota"),
    [
        (NESTED, "0::/batch/job/step\n", V2_MOUNT, "/", 2.5),
        (OLDER, "4:memory:/docker/id\n2:cpu,cpuacct:/docker/id\n0::/\n", V1_MOUNT, "/", 1.5),
        (OWN, "2:cpu,cpuacct:/docker/id\n", V1_MOUNT, "/docker/id", 3),
        (OWN, "2:cpu,cpuacct:/other\n", V1_MOUNT, "/docker/id", 3),
    ],
    ids=[
        *("the lowest on the way up", "older control groups", "a mount that begins at its group"),
        "a mount that begins at another",
    ],
)
def test_the_quota_of_a_process_is_found(tmp_path, files, groups, mount, root, quota):
    assert cpu_quota(process(tmp_path, files, groups, mount, root)) == quota


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
    files = {"cpu.max": f"{quota} 100000"}
    assert usable_cores(process(tmp_path, files, "0::/\n", V2_MOUNT, "/")) == cores


def test_in_a_real_control_group_a_deployment_gets_its_share_of_instances():
    code = (
        "import os, pathlib, sys;"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()));"
        "from deploy.deployment.deployment import Deployment;"
        "from deploy.deployment.limits import Limits;"
        "free = Limits(waiting=0, wait_s=0);"
        "print(*(Deployment(limits=free, cpus=n).instance_count() for n in (None, 64)))"
    )
    folder = Path(f"/sys/fs/cgroup/cpu/numlkit-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        (folder / "cpu.cfs_quota_us").write_text("100000")  # microseconds in 100 ms
        done = run_program([sys.executable, "-c", code, folder], cwd=CHECKOUT, check=True)
    finally:
        folder.rmdir()
    assert done.stdout.split() == ["1", "1"]
