"""How many cores this process may use, by CPU affinity and cgroup quota.

A batch system or container engine limits a job either to certain cores or to a quota of CPU time.
Source of the quota's files: the kernel's ``admin-guide/cgroup-v2`` (``cpu.max``) and
``scheduler/sched-bwc`` (``cpu.cfs_quota_us``).
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")


def usable_cores(process: Path = _PROCESS) -> int:
    """Return how many cores this process may keep busy, at least 1.

    A quota is rounded: half a core is worth another instance, less is not.
    """
    named = len(os.sched_getaffinity(0))
    quota = cpu_quota(process)
    return named if quota is None else max(1, min(named, int(quota + 0.5)))


def cpu_quota(process: Path = _PROCESS) -> float | None:
    """Return the cgroup quota in cores, or None; groups nest, so the lowest one counts."""
    limits = [limit for group in _groups(process) if (limit := _limit(group)) is not None]
    return min(limits, default=None)


def _groups(process: Path) -> Iterator[Path]:
    """Yield the folders of the process's cgroups with a CPU controller, and of their ancestors."""
    try:
        memberships = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in mounts:
            # ID PARENT DEVICE ROOT POINT OPTIONS [FIELD ...] - TYPE SOURCE SUPER_OPTIONS
            fields, _, kind = mount.partition(" - ")
            root, point = fields.split()[3:5]
            words = kind.split()
            here = words[0] == "cgroup" and "cpu" in words[-1].split(",")
            if not (here if controllers else words[0] == "cgroup2"):
                continue
            # A container's mount may start at its own group, while its path is the host's.
            inside = PurePosixPath(path)
            below = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()
            folder = Path(point, below)
            yield from (folder, *list(folder.parents)[: len(below.parts)])


def _limit(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return cores if cores > 0 else None
